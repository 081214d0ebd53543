"""Small tasks and clients for the training core."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from parley.core.key import Key
from parley.core.tree import Tree
from parley.data import ClientData, DataInfo
from parley.training.batches import Work
from parley.training.local import Trained, train
from parley.training.losses import losses
from parley.training.optimizers import Kept
from parley.training.stack import ClientStack
from parley.training.task import Task

Sizes = tuple[int, ...]
KEY = Key(1)


@pytest.fixture
def seeded() -> Callable[[Callable[[], nn.Module]], nn.Module]:
    """Builds a double-precision module with fixed weights, leaving the global random state alone."""

    def build(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return make().double()

    return build


@pytest.fixture
def task_of() -> Callable[..., Task]:
    """The task of a module and a loss by name."""

    def build(module: nn.Module, loss: str, shape: tuple[int, ...], outputs: int) -> Task:
        kind = "classification" if loss == "cross-entropy" else "regression"
        return Task(module, losses[loss], DataInfo("toy", shape, outputs, kind), 4)

    return build


@pytest.fixture
def in_stack() -> Callable[..., Trained]:
    """Runs a function of trees as the stacked runtime runs a method; every tensor of the outcome has a client axis."""

    def run(function: Callable[..., Trained], count: int, *rows: Tree) -> Trained:
        made: list[Trained] = []

        def one(_: Tensor, *trees: Tree) -> tuple[Tree | Tensor, ...]:
            made.append(got := function(*trees))
            return got.parameters, got.gradients, got.loss, got.step_sum, got.optimizer.slots

        parameters, gradients, loss, moved, slots = torch.func.vmap(one)(torch.empty(count), *rows)
        kept = replace(made[0].optimizer, slots=slots)
        return Trained(parameters, {}, gradients, loss, lambda: moved, kept)

    return run


@pytest.fixture
def clients() -> Callable[..., tuple[ClientData, ...]]:
    """Clients of the given sizes, largest first as in a stack, in double precision."""

    def build(sizes: Sizes, shape: tuple[int, ...], outputs: int, loss: str) -> tuple[ClientData, ...]:
        made = []
        for number, size in enumerate(sorted(sizes, reverse=True)):
            random = Key(number).torch()
            x = torch.randn(size, *shape, generator=random, dtype=torch.float64)
            y: Tensor
            if loss == "cross-entropy":
                y = torch.randint(outputs, (size,), generator=random)
            else:
                y = torch.randn(size, outputs, generator=random, dtype=torch.float64)
            made.append(ClientData(x, y))
        return tuple(made)

    return build


@pytest.fixture
def run(in_stack) -> Callable[..., Trained]:
    """Some steps with an optimizer whose state is kept, of one client or of a stack."""

    def train_once(task, data, optimizer, steps, start=None, kept=None, key=KEY) -> Trained:
        kept, x = kept or Kept(), start or task.initial()
        options = {"work": Work(steps=steps), "optimizer": optimizer}
        if not isinstance(data, ClientStack):
            return train(task, x, data, key, kept=kept, **options)
        count = len(data.sizes)
        rows = x if start else {n: v.expand(count, *v.shape) for n, v in x.items()}

        def together(own: Tree, slots: Tree) -> Trained:
            return train(task, own, data, key, kept=Kept(slots, kept.counts), **options)

        return in_stack(together, count, rows, kept.slots)

    return train_once

"""Small tasks and clients for the training core."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from parley.core.key import Key
from parley.data import ClientData, DataInfo
from parley.learn.losses import losses
from parley.learn.task import Task

Sizes = tuple[int, ...]


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

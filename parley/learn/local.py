"""The local-training core: K steps or E epochs on one client or on a stack of clients.

Most federated methods are this plus something elementwise. They say what with a gradient transform (a proximal pull, a
control variate) and with Theta, the weights with which gradients are summed (paper 001, Algorithm 2):

    x_1 = x
    for k = 1 ... K:  g_k = transform(gradient of batch k at x_k);  x_{k+1} = optimizer(x_k, g_k)
    return x_{K+1} and sum_k theta_k g_k
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.tree import Tree
from parley.data import ClientData
from parley.learn.batches import Work
from parley.learn.dense import DenseGradient
from parley.learn.gradients import Gradient, SoloGradient, StackGradient
from parley.learn.optimizers import Kept, LocalOptimizer
from parley.learn.randomness import forward_randomness
from parley.learn.stack import ClientStack, KeyStack, stack_batches
from parley.learn.task import Task
from parley.learn.transforms import GradientTransform

Theta = Literal["all", "last"] | Sequence[float]
"""Theta_{1:K} (all gradients), Theta_K (the last one) or explicit weights theta_1 ... theta_K."""

CHUNK = 512
"""Samples of a full gradient taken at once."""

Data = ClientData | ClientStack
Keys = Key | KeyStack


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome of local training; in a stack every tensor has a leading client axis."""

    parameters: Tree
    buffers: Tree
    gradients: Tree
    """sum_k theta_k g_k, empty unless asked for."""
    loss: Tensor
    """Mean training loss over the steps, [] or [S]."""
    steps: int | tuple[int, ...]
    optimizer: Kept = field(default_factory=Kept)
    """The local optimizer's state, empty unless asked for."""


def train(
    task: Task,
    parameters: Tree,
    data: Data,
    key: Keys,
    *,
    work: Work,
    optimizer: LocalOptimizer,
    transform: GradientTransform | None = None,
    theta: Theta | None = None,
    buffers: Tree | None = None,
    kept: Kept | None = None,
) -> Trained:
    """Train locally from `parameters`, which are left as they are.

    `kept` is an optimizer state to go on from (an empty one at first); without it the optimizer starts afresh.
    """
    names = list(parameters)
    own_buffers = {name: value.clone() for name, value in (buffers or {}).items()}
    gradient, steps, x = _prepare(task, names, parameters, own_buffers, data, key, work)
    most = max(steps) if isinstance(steps, tuple) else steps
    total = [torch.zeros_like(value) for value in x] if theta is not None else None
    stepper = optimizer.start(x, names if kept is not None else None, kept)
    fused = isinstance(gradient, DenseGradient) and optimizer.plain and transform is None and total is None
    losses = torch.zeros((len(steps),) if isinstance(steps, tuple) else (), dtype=torch.float64)
    _check_theta(theta, most)
    # Only of a dense chain is it certain that no layer draws random numbers (a module may call F.dropout by hand).
    random = task.traits.dense is None and isinstance(key, Key)
    task.module.train()
    with torch.no_grad(), forward_randomness(key.fold("forward") if isinstance(key, Key) else Key(), random):
        for k in range(most):
            active = _active(steps, k)
            rows = x if active is None else [value[:active] for value in x]
            if fused:
                assert isinstance(gradient, DenseGradient)
                loss = gradient.descend(rows, k, optimizer.lr)
            else:
                g, loss = gradient(rows, k)
                if transform is not None:
                    g = transform(g, rows, k)
                if total is not None and theta is not None:
                    _accumulate(total, g, theta, k, steps)
                stepper.step(x, g, active)
            (losses if active is None else losses[:active]).add_(loss)
    return Trained(
        parameters=dict(zip(names, [value.detach() for value in x], strict=True)),
        buffers=own_buffers,
        gradients=dict(zip(names, total, strict=True)) if total is not None else {},
        loss=losses / torch.tensor(steps, dtype=torch.float64),
        steps=steps,
        optimizer=stepper.kept() if kept is not None else Kept(),
    )


def full_gradient(task: Task, x: Tree, data: Data, key: Keys, buffers: Tree | None = None) -> Tree:
    """The gradient of a client's loss at x over all its samples (of each client of a stack, with a leading axis)."""
    work, theta = Work(steps=1), [1.0]
    if isinstance(data, ClientData) and len(data) > CHUNK:
        work = Work(epochs=1, batch=CHUNK)
        theta = [length / len(data) for length in work.plan(len(data), Key()).lengths]
    still = LocalOptimizer(lr=0.0)
    return train(task, x, data, key, work=work, optimizer=still, theta=theta, buffers=buffers).gradients


def _prepare(
    task: Task, names: list[str], parameters: Tree, buffers: Tree, data: Data, key: Keys, work: Work
) -> tuple[Gradient, int | tuple[int, ...], list[Tensor]]:
    """The gradient function, the number of steps (one per client of a stack) and the parameters to train."""
    if isinstance(data, ClientData) and isinstance(key, Key):
        plan = work.plan(len(data), key.fold("batches"))
        x = [value.detach().clone() for value in parameters.values()]
        return SoloGradient(task, names, buffers, data, plan), plan.steps, x
    assert isinstance(data, ClientStack)
    assert isinstance(key, KeyStack)
    plans = [work.plan(n, k) for n, k in zip(data.sizes, key.fold("batches").keys, strict=True)]
    batches = stack_batches(data, plans, next(iter(parameters.values())).dtype)
    shapes = {name: parameter.ndim for name, parameter in task.module.named_parameters()}
    x = [_stacked(parameters[name], shapes[name], len(data)) for name in names]
    dense = DenseGradient.applies(task, data.clients[0])
    gradient = DenseGradient(task, names, batches) if dense else StackGradient(task, names, batches)
    return gradient, batches.steps, x


def _stacked(value: Tensor, ndim: int, size: int) -> Tensor:
    """One row per client; a value shared by all clients is repeated."""
    shared = value.ndim == ndim
    return value.detach().expand(size, *value.shape).clone() if shared else value.detach().clone()


def _active(steps: int | tuple[int, ...], k: int) -> int | None:
    """How many clients of a stack still work in step k (from 0); None if all do, or for one client."""
    return None if isinstance(steps, int) or steps[-1] > k else _count(steps, k)


def _check_theta(theta: Theta | None, steps: int) -> None:
    if theta is None or isinstance(theta, str):
        return
    if len(theta) != steps:
        raise InputError(f"Theta has {len(theta)} weights but a client takes {steps} steps; make them equal.")


def _accumulate(total: list[Tensor], g: list[Tensor], theta: Theta, k: int, steps: int | tuple[int, ...]) -> None:
    """total += theta_k g_k (paper 001, the last line of Algorithm 2)."""
    if theta == "last":
        # The clients whose own last step this is: all or none of one client, the last active rows of a stack.
        ending = slice(_count(steps, k + 1), _count(steps, k)) if isinstance(steps, tuple) else ...
        if isinstance(steps, tuple) or k == steps - 1:
            for into, gradient in zip(total, g, strict=True):
                into[ending] = gradient[ending]
        return
    weight = 1.0 if isinstance(theta, str) else float(theta[k])
    if weight:
        rows = total if isinstance(steps, int) else [into[: len(own)] for into, own in zip(total, g, strict=True)]
        torch._foreach_add_(rows, g, alpha=weight)


def _count(steps: tuple[int, ...], k: int) -> int:
    """How many clients of a stack take more than k steps; they are the first ones."""
    return sum(1 for own in steps if own > k)

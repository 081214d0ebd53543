"""MAML's client update with true second-order gradients (Charles and Konečný, Section 3, "MAML").

    X_K(x): K steps of size gamma on F(y) = f_i(y) + alpha/2 ||y - x||^2 from y = x;  send grad_x F(X_K(x)).

The centre of the proximal term is held fixed under the derivative: then MAML is LocalUpdate with Theta_{2K+1} on
quadratics for every alpha, as Theorem 2 says for alpha = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, vmap

from parley.core.errors import UnsupportedError
from parley.core.key import Key
from parley.core.tree import Tree, detach
from parley.data import ClientData
from parley.training.batches import Work
from parley.training.devices import wide
from parley.training.local import Trained
from parley.training.optimizers import LocalOptimizer
from parley.training.randomness import forward_randomness
from parley.training.stack import ClientStack, Data, Keys, KeyStack, outside, rows, stack_batches
from parley.training.task import Task


def meta_gradient(
    task: Task, parameters: Tree, data: Data, key: Keys, *, work: Work, lr: float, alpha: float = 0.0
) -> Trained:
    """The gradient of the adapted model's loss in the model before adaptation, on a batch of its own."""
    if task.traits.has_batchnorm:
        raise UnsupportedError("MAML differentiates through local steps and cannot do so through BatchNorm statistics.")
    task.network.train()
    moved = LocalOptimizer(lr=lr).step_sum
    if isinstance(data, ClientData):
        assert isinstance(key, Key)
        steps, function, tensors = _adaptation(
            task, ClientStack.of([data]), KeyStack((key,)), work, lr, alpha, parameters
        )
        with forward_randomness(key.fold("forward"), task.traits.dense is None, task.device):
            gradients, loss = function(parameters, parameters, *[t[0] for t in tensors])
        return Trained(parameters, {}, detach(gradients), loss.detach().to(wide(loss.device)), lambda: moved(steps))
    assert isinstance(key, KeyStack)
    counts = [work.count(size) for size in data.sizes]
    start = {name: rows(value.detach(), len(counts)) for name, value in parameters.items()}
    with outside() as stack:
        parts = []
        for part in _runs(counts):  # clients that take equally many steps are neighbours
            values = {name: value[part] for name, value in start.items()}
            clients, keys = data.part(part), KeyStack(key.keys[part])
            _, function, tensors = _adaptation(task, clients, keys, work, lr, alpha, values)
            parts.append(vmap(function)(values, values, *tensors))
        gradients = {name: torch.cat([values[name] for values, _ in parts]) for name in start}
        loss = torch.cat([values for _, values in parts]).double()

    def moved_each() -> Tensor:
        return stack.client(moved(tuple(counts), device=loss.device))

    return Trained(parameters, {}, stack.each(gradients), stack.client(loss), moved_each)


def _runs(values: Sequence[int]) -> list[slice]:
    """Stretches of equal values."""
    ends = [i + 1 for i in range(len(values)) if i + 1 == len(values) or values[i + 1] != values[i]]
    return [slice(first, last) for first, last in zip([0, *ends], ends, strict=False)]


def _adaptation(
    task: Task, stack: ClientStack, keys: KeyStack, work: Work, lr: float, alpha: float, parameters: Tree
) -> tuple[int, Callable[..., tuple[Tree, Tensor]], tuple[Tensor, ...]]:
    """Steps, the function (start, centre, *batches of one client) -> gradient and loss, and the batches of all."""
    plan = work.stacked(stack.sizes, keys.fold("batches").keys)
    query = replace(work, steps=1, epochs=None).stacked(stack.sizes, keys.fold("query").keys)
    like = next(iter(parameters.values()))
    inner, outer = stack_batches(stack, plan, like), stack_batches(stack, query, like)
    steps = plan.steps[0]

    def objective(y: Tree, centre: Tree, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        features, targets, weights = batch
        loss = torch.dot(task.loss(task.apply(y, {}, features), targets), weights)
        if alpha:
            loss = loss + alpha / 2 * sum(((y[name] - centre[name]) ** 2).sum() for name in y)
        return loss

    def adapted(start: Tree, centre: Tree, *batches: Tensor) -> Tensor:
        x, y, w, *query_batch = batches
        model = start
        for k in range(steps):
            index = 0 if x.shape[0] == 1 else k
            step = grad(objective)(model, centre, (x[index], y[index], w[index]))
            model = {name: value - lr * step[name] for name, value in model.items()}
        return objective(model, centre, (query_batch[0][0], query_batch[1][0], query_batch[2][0]))

    function: Callable[..., tuple[Tree, Tensor]] = grad_and_value(adapted)
    return steps, function, (*inner.all(), *outer.all())

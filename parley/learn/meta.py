"""MAML's client update with true second-order gradients (paper 001, Section 3, "MAML").

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
from parley.core.tree import Tree
from parley.data import ClientData
from parley.learn.batches import Work
from parley.learn.local import Data, Keys, Trained
from parley.learn.randomness import forward_randomness
from parley.learn.stack import ClientStack, KeyStack, stack_batches
from parley.learn.task import Task


def meta_gradient(
    task: Task, parameters: Tree, data: Data, key: Keys, *, work: Work, lr: float, alpha: float = 0.0
) -> Trained:
    """The gradient of the adapted model's loss in the model before adaptation, on a batch of its own."""
    if task.traits.has_batchnorm:
        raise UnsupportedError("MAML differentiates through local steps and cannot do so through BatchNorm statistics.")
    if isinstance(data, ClientData):
        stack, keys = ClientStack((data,)), KeyStack((key,)) if isinstance(key, Key) else key
    else:
        stack, keys = data, key if isinstance(key, KeyStack) else KeyStack((key,))
    counts = [work.count(size) for size in stack.sizes]
    if len(set(counts)) > 1:
        return _by_steps(counts, lambda rows: meta_gradient(
            task, parameters, ClientStack(stack.clients[rows]), KeyStack(keys.keys[rows]), work=work, lr=lr, alpha=alpha
        ))  # fmt: skip
    plans = [work.plan(n, k.fold("batches")) for n, k in zip(stack.sizes, keys.keys, strict=True)]
    query = replace(work, steps=1, epochs=None)
    queries = [query.plan(n, k.fold("query")) for n, k in zip(stack.sizes, keys.keys, strict=True)]
    dtype = next(iter(parameters.values())).dtype
    inner, outer = stack_batches(stack, plans, dtype), stack_batches(stack, queries, dtype)
    steps = plans[0].steps

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
            place = 0 if x.shape[0] == 1 else k
            step = grad(objective)(model, centre, (x[place], y[place], w[place]))
            model = {name: value - lr * step[name] for name, value in model.items()}
        return objective(model, centre, (query_batch[0][0], query_batch[1][0], query_batch[2][0]))

    tensors = (*inner.all(), *outer.all())
    function: Callable[..., tuple[Tree, Tensor]] = grad_and_value(adapted)
    task.module.train()
    if isinstance(data, ClientData):
        assert isinstance(key, Key)
        with forward_randomness(key.fold("forward"), task.traits.dense is None):
            gradients, loss = function(parameters, parameters, *[t[0] for t in tensors])
        return Trained(parameters, {}, {n: g.detach() for n, g in gradients.items()}, loss.detach().double(), steps)
    gradients, loss = vmap(function, in_dims=(None, None, *[0] * 6))(parameters, parameters, *tensors)
    return Trained(parameters, {}, gradients, loss.double(), (steps,) * len(data))


def _by_steps(counts: Sequence[int], part: Callable[[slice], Trained]) -> Trained:
    """The rows of a stack in groups that take equally many steps; such rows are neighbours."""
    ends = [row + 1 for row in range(len(counts)) if row + 1 == len(counts) or counts[row + 1] != counts[row]]
    parts = [part(slice(first, last)) for first, last in zip([0, *ends], ends, strict=False)]
    gradients = {name: torch.cat([own.gradients[name] for own in parts]) for name in parts[0].gradients}
    return Trained(parts[0].parameters, {}, gradients, torch.cat([own.loss for own in parts]), tuple(counts))

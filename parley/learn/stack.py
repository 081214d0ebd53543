"""A stack of clients that train together: their data, their keys, and the batches padded to one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from parley.core.key import Key
from parley.core.tree import Tree, scale
from parley.data import ClientData
from parley.learn.batches import Plan, pad


@dataclass(frozen=True, slots=True)
class KeyStack:
    """One key per client of a stack; folds like a key."""

    keys: tuple[Key, ...]

    def fold(self, *path: str | int) -> KeyStack:
        return KeyStack(tuple(key.fold(*path) for key in self.keys))


@dataclass(frozen=True, slots=True)
class ClientStack:
    """The data of several clients, the largest first, so that those still at work are always the first rows."""

    clients: tuple[ClientData, ...]

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def sizes(self) -> list[int]:
        return [len(client) for client in self.clients]


_BLOCK = 2**26
"""Bytes of inputs that are gathered at once."""


@dataclass(slots=True)
class StackedBatches:
    """Batches of all steps, padded. They are gathered some steps at a time: together they would be the data of all
    clients once per epoch."""

    data: ClientStack
    indices: Tensor
    """[S, steps, B]: each client's samples of each step; one step stands for all where batches are full."""
    weights: Tensor
    """[S, steps, B]: 1/length on real samples, 0 on padding."""
    steps: tuple[int, ...]
    """Steps of each client, never increasing."""
    _within: range = range(0)
    _x: Tensor = field(default_factory=lambda: torch.empty(0))
    _y: Tensor = field(default_factory=lambda: torch.empty(0))

    def __call__(self, step: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """x [rows, B, ...], y and weights of a step for the first clients; later steps never ask for more of them."""
        if self.indices.shape[1] == 1:
            step = 0
        if step not in self._within:
            one = rows * self.indices.shape[2] * max(self.data.clients[0].x[:1].nbytes, 1)
            self._within = range(step, min(step + max(1, _BLOCK // one), self.indices.shape[1]))
            self._x, self._y = self._gather(self.indices[:rows, self._within.start : self._within.stop])
        at = step - self._within.start
        return self._x[:rows, at], self._y[:rows, at], self.weights[:rows, step]

    def all(self) -> tuple[Tensor, Tensor, Tensor]:
        """x [S, steps, B, ...], y and weights."""
        return *self._gather(self.indices), self.weights

    def _gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        clients = self.data.clients[: len(indices)]
        return _gather([client.x for client in clients], indices), _gather([client.y for client in clients], indices)


def per_client(tree: Tree, factors: Tensor) -> Tree:
    """`tree` times a factor: one number [], or one for each client of a stack [S]."""
    if factors.ndim == 0:
        return scale(tree, float(factors))
    return {n: v * factors.to(v.dtype).view(-1, *[1] * (v.ndim - 1)) for n, v in tree.items()}


def stack_batches(data: ClientStack, plans: Sequence[Plan], dtype: torch.dtype) -> StackedBatches:
    """The batches of all steps of all clients, in one padded shape."""
    steps = tuple(plan.steps for plan in plans)
    full = all(plan.indices is None for plan in plans)
    if full:
        plans = [Plan(None, plan.lengths[:1]) for plan in plans]
    indices, weights = pad(plans, data.sizes)
    return StackedBatches(data, indices, weights.to(dtype), steps)


def _gather(sources: list[Tensor], indices: Tensor) -> Tensor:
    """rows[s, k, b] = sources[s][indices[s, k, b]]."""
    first = sources[0]
    flat = indices.flatten(1)
    rows = torch.empty(*flat.shape, *first.shape[1:], dtype=first.dtype)
    for source, index, row in zip(sources, flat, rows, strict=True):
        torch.index_select(source, 0, index, out=row)
    return rows.view(*indices.shape, *first.shape[1:])

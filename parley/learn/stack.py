"""A stack of clients that train together: their data, their keys, and the batches padded to one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class StackedBatches:
    """Batches of all steps, padded: x [S, steps, B, ...], y, and weights [S, steps, B], 1/length on real samples."""

    x: Tensor
    y: Tensor
    weights: Tensor
    steps: tuple[int, ...]
    """Steps of each client, never increasing."""

    def __call__(self, step: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        if self.x.shape[1] == 1:  # every step sees the same full batch
            step = 0
        return self.x[:rows, step], self.y[:rows, step], self.weights[:rows, step]


def per_client(tree: Tree, factors: Tensor) -> Tree:
    """`tree` times a factor: one number [], or one for each client of a stack [S]."""
    if factors.ndim == 0:
        return scale(tree, float(factors))
    return {n: v * factors.to(v.dtype).view(-1, *[1] * (v.ndim - 1)) for n, v in tree.items()}


def stack_batches(data: ClientStack, plans: Sequence[Plan], dtype: torch.dtype) -> StackedBatches:
    """Gather the batches of all steps of all clients once."""
    steps = tuple(plan.steps for plan in plans)
    full = all(plan.indices is None for plan in plans)
    if full:
        plans = [Plan(None, plan.lengths[:1]) for plan in plans]
    indices, weights = pad(plans, data.sizes)
    columns = [_gather([getattr(client, name) for client in data.clients], indices) for name in ("x", "y")]
    return StackedBatches(columns[0], columns[1], weights.to(dtype), steps)


def _gather(sources: list[Tensor], indices: Tensor) -> Tensor:
    """rows[s, k, b] = sources[s][indices[s, k, b]]."""
    first = sources[0]
    flat = indices.flatten(1)
    rows = torch.empty(*flat.shape, *first.shape[1:], dtype=first.dtype)
    for source, index, row in zip(sources, flat, rows, strict=True):
        torch.index_select(source, 0, index, out=row)
    return rows.view(*indices.shape, *first.shape[1:])

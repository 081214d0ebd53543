"""A stack of clients that train together: their data, their contexts, and the batches padded to one shape.

A method's `client` is written for one client. On a stack it runs once, under `torch.func.vmap`: whatever it computes
with trees is computed for every client by itself, and the local-training core, which meets a stack here, takes the
clients' rows all at once. What vmap cannot follow (a look at the samples, a decision that depends on a value) raises
`Unstackable`, so no method can be stacked that does not mean the same for one client.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

from parley.core.context import Context, Secrets
from parley.core.errors import UnsupportedError
from parley.core.key import Key, fold_all
from parley.core.tree import Tree
from parley.data import ClientData
from parley.learn.batches import Plan, pad


class Unstackable(UnsupportedError):
    """A method that works client by client; the text is the end of a sentence about it."""


@dataclass(frozen=True, slots=True)
class KeyStack:
    """One key per client of a stack; folds like a key."""

    keys: tuple[Key, ...]

    def fold(self, *path: str | int) -> KeyStack:
        return KeyStack(fold_all(self.keys, *path))

    def __getattr__(self, name: str) -> NoReturn:
        raise Unstackable(f"draws random numbers of its own ('{name}')")


@dataclass(frozen=True, slots=True)
class ContextStack:
    """The contexts of a stack, which are asked the same in the same round."""

    contexts: tuple[Context, ...]

    @property
    def round(self) -> int:
        return self.contexts[0].round

    @property
    def key(self) -> KeyStack:
        first = self.contexts[0]
        return self.round_key.fold(first.asked, first.exchange)

    @property
    def round_key(self) -> KeyStack:
        return KeyStack(tuple([context.round_key for context in self.contexts]))

    @property
    def secrets(self) -> Secrets:
        raise Unstackable("uses a client's secrets")

    @property
    def id(self) -> str:
        raise Unstackable("asks for a client's id")


@dataclass(frozen=True, slots=True)
class ClientStack:
    """The data of several clients, the largest first, so that those still at work are always the first rows."""

    clients: tuple[ClientData, ...]

    @property
    def sizes(self) -> list[int]:
        return [len(client) for client in self.clients]

    def __len__(self) -> NoReturn:
        raise Unstackable("counts a client's samples")

    def __getattr__(self, name: str) -> NoReturn:
        raise Unstackable(f"looks at a client's samples ('{name}')")


Data = ClientData | ClientStack
Keys = Key | KeyStack


def rows(value: Tensor, clients: int) -> Tensor:
    """[clients, ...]: what stands for one client of a stack, as all of them have it."""
    if _functorch.is_batchedtensor(value):
        return _functorch.get_unwrapped(value).movedim(_functorch.maybe_get_bdim(value), 0)
    return value.expand(clients, *value.shape)


def shared(value: Tensor) -> bool:
    """Whether all clients of a stack have the same."""
    return not _functorch.is_batchedtensor(value)


@dataclass(frozen=True, slots=True)
class Outside:
    """For what takes the rows of all clients at once."""

    level: int

    def one(self, value: Tensor) -> Tensor:
        """Rows [clients, ...] as one client's tensor [...]; for use after the block."""
        wrapped: Tensor = _functorch._add_batch_dim(value, 0, self.level)
        return wrapped

    def each(self, tree: Tree) -> Tree:
        return {name: self.one(value) for name, value in tree.items()}


@contextmanager
def outside() -> Iterator[Outside]:
    """Within, tensors are what they are: `rows` of all clients."""
    level = _functorch.maybe_current_level()
    if level is None:
        raise Unstackable("was called with a stack of clients outside the stacked runtime")
    with temporarily_pop_interpreter_stack():
        yield Outside(level)


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
    _gathered: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    """x, y and weights of those steps."""

    def __call__(self, step: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """x [rows, B, ...], y and weights of a step for the first clients; later steps never ask for more of them."""
        if self.indices.shape[1] == 1:
            step = 0
        if step not in self._within:
            one = rows * self.indices.shape[2] * max(self.data.clients[0].x[:1].nbytes, 1)
            self._within = range(step, min(step + max(1, _BLOCK // one), self.indices.shape[1]))
            part = slice(self._within.start, self._within.stop)
            x, y = self._gather(self.indices[:rows, part])
            columns = [value.unbind(1) for value in (x, y, self.weights[:rows, part])]
            self._gathered = list(zip(*columns, strict=True))
        x, y, weights = self._gathered[step - self._within.start]
        return (x, y, weights) if len(x) == rows else (x[:rows], y[:rows], weights[:rows])

    def all(self) -> tuple[Tensor, Tensor, Tensor]:
        """x [S, steps, B, ...], y and weights."""
        return *self._gather(self.indices), self.weights

    def _gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        clients = self.data.clients[: len(indices)]
        return _gather([client.x for client in clients], indices), _gather([client.y for client in clients], indices)


def stack_batches(data: ClientStack, plans: Sequence[Plan], like: Tensor) -> StackedBatches:
    """The batches of all steps of all clients, in one padded shape; weights of the dtype and device of `like`."""
    steps = tuple(plan.steps for plan in plans)
    full = all(plan.indices is None for plan in plans)
    if full:
        plans = [Plan(None, plan.lengths[:1]) for plan in plans]
    indices, weights = pad(plans, data.sizes)
    return StackedBatches(data, indices.to(like.device), weights.to(like), steps)


def _gather(sources: list[Tensor], indices: Tensor) -> Tensor:
    """rows[s, k, b] = sources[s][indices[s, k, b]]."""
    first, shape = sources[0], sources[0].shape[1:]
    for source in sources:
        # `index_select` would resize its row for another width and leave the memory as it found it.
        if source.shape[1:] != shape or source.dtype is not first.dtype:
            raise Unstackable(
                f"has clients whose samples differ: {_kind(first)} and {_kind(source)}; they must be alike"
            )
    flat = indices.flatten(1)
    gathered = torch.empty(*flat.shape, *shape, dtype=first.dtype, device=first.device)
    for source, index, row in zip(sources, flat, gathered, strict=True):
        torch.index_select(source, 0, index, out=row)
    return gathered.view(*indices.shape, *shape)


def _kind(samples: Tensor) -> str:
    return f"{samples.dtype} {list(samples.shape[1:])}"


def stack_tensors(values: Sequence[Tensor]) -> Any:
    """[clients, ...], without a copy where all have the very same tensor."""
    first = values[0]
    if len(values) > 1 and all(value is first for value in values):
        return first.expand(len(values), *first.shape)
    return torch.stack(list(values))

"""A stack of clients that train together: their data, their contexts, and the batches padded to one shape.

A method's `client` is written for one client. On a stack it runs once, under `torch.func.vmap`: whatever it computes
with trees is computed for every client by itself, and the local-training core, which meets a stack here, takes the
clients' rows all at once. What vmap cannot follow (a look at the samples, a decision that depends on a value) raises
`Unstackable`, so no method can be stacked that does not mean the same for one client.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch._functorch.vmap import vmap_increment_nesting

from parley.core.context import Context, Secrets
from parley.core.errors import UnsupportedError
from parley.core.key import Key, fold_all
from parley.core.tree import Tree
from parley.data import ClientData
from parley.training.batches import StackPlan


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
        return KeyStack(Context.round_keys(self.contexts))

    @property
    def secrets(self) -> Secrets:
        raise Unstackable("uses a client's secrets")

    @property
    def id(self) -> str:
        raise Unstackable("asks for a client's id")


@dataclass(frozen=True, slots=True)
class ClientStack:
    """The data of several clients, the largest first, so that those still at work are always the first rows."""

    samples: ClientData
    """Those of all of them, and maybe of others."""
    starts: tuple[int, ...]
    """Where each client's begin."""
    sizes: tuple[int, ...]
    order: Tensor | None = None
    """Where the samples lie, one client's after the other's; None: as they are counted."""

    @staticmethod
    def of(clients: Sequence[ClientData]) -> ClientStack:
        first = clients[0]
        for client in clients:
            if _kind(client) != _kind(first):
                raise Unstackable(
                    f"has clients whose samples differ: {_shown(first)} and {_shown(client)}; they must be alike"
                )
        sizes = tuple([len(client) for client in clients])
        if len(clients) > 1:
            first = ClientData(torch.cat([client.x for client in clients]), torch.cat([client.y for client in clients]))
        return ClientStack(first, (0, *accumulate(sizes[:-1])), sizes)

    def part(self, chosen: slice) -> ClientStack:
        """Some of the clients."""
        return replace(self, starts=self.starts[chosen], sizes=self.sizes[chosen])

    def joined(self) -> ClientStack:
        """The same with the samples of these clients alone, one after the other."""
        starts = (0, *accumulate(self.sizes[:-1]))
        if self.order is None and starts == tuple(self.starts) and starts[-1] + self.sizes[-1] == len(self.samples):
            return self
        rows = torch.cat([torch.arange(start, start + n) for start, n in zip(self.starts, self.sizes, strict=True)])
        rows = (rows if self.order is None else self.order[rows]).to(self.samples.x.device)
        samples = ClientData(self.samples.x.index_select(0, rows), self.samples.y.index_select(0, rows))
        return ClientStack(samples, starts, self.sizes)

    def clients(self) -> tuple[ClientData, ...]:
        """The samples of each of them."""
        slices = [slice(start, start + size) for start, size in zip(self.starts, self.sizes, strict=True)]
        rows = slices if self.order is None else [self.order[position] for position in slices]
        return tuple([ClientData(self.samples.x[index], self.samples.y[index]) for index in rows])

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
class Level:
    """A level of vmap: between the rows of all clients and what stands for one of them."""

    level: int

    def client(self, value: Tensor) -> Tensor:
        """Rows [clients, ...] as one client's tensor [...]."""
        wrapped: Tensor = _functorch._add_batch_dim(value, 0, self.level)
        return wrapped

    def each(self, tree: Tree) -> Tree:
        return {name: self.client(value) for name, value in tree.items()}

    def rows(self, tree: Tree, clients: int) -> Tree:
        """What one client has computed, as the rows of all."""
        return {n: _functorch._remove_batch_dim(value, self.level, clients, 0) for n, value in tree.items()}


@contextmanager
def mapped(clients: int) -> Iterator[Level]:
    """Within, operations are those of one client: `torch.func.vmap` without its search through nested arguments."""
    with vmap_increment_nesting(clients, "error") as level:
        yield Level(level)


@contextmanager
def outside() -> Iterator[Level]:
    """Within, tensors are what they are: `rows` of all clients. The level is for use after the block."""
    level = _functorch.maybe_current_level()
    if level is None:
        raise Unstackable("was called with a stack of clients outside the stacked runtime")
    with temporarily_pop_interpreter_stack():
        yield Level(level)


_BLOCK = 2**26
"""Bytes of inputs that are gathered at once."""


@dataclass(slots=True)
class StackedBatches:
    """Batches of all steps, padded. They are gathered some steps at a time: together they would be the data of all
    clients once per epoch."""

    samples: ClientData
    indices: Tensor
    """[S, steps, B]: where each client's samples of each step lie; one step stands for all where batches are full."""
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
            step_bytes = rows * self.indices.shape[2] * max(self.samples.x[:1].nbytes, 1)
            self._within = range(step, min(step + max(1, _BLOCK // step_bytes), self.indices.shape[1]))
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
        flat, x, y = indices.reshape(-1), self.samples.x, self.samples.y
        return (
            x.index_select(0, flat).view(*indices.shape, *x.shape[1:]),
            y.index_select(0, flat).view(*indices.shape, *y.shape[1:]),
        )


def stack_batches(data: ClientStack, plan: StackPlan, like: Tensor) -> StackedBatches:
    """The batches of all steps of all clients, in one padded shape; weights of the dtype and device of `like`."""
    positions = plan.indices + torch.tensor(data.starts)[:, None, None]
    if data.order is not None:
        positions = data.order.take(positions)
    weights = plan.weights
    same = weights.stride(0) == 0  # of all clients; then one row is converted
    weights = weights[:1].to(like).expand(weights.shape) if same else weights.to(like)
    return StackedBatches(data.samples, positions.to(data.samples.x.device), weights, plan.steps)


def _kind(data: ClientData) -> tuple[object, ...]:
    return data.x.shape[1:], data.x.dtype, data.y.shape[1:], data.y.dtype


def _shown(data: ClientData) -> str:
    return f"{data.x.dtype} {list(data.x.shape[1:])} with targets {data.y.dtype} {list(data.y.shape[1:])}"


def stack_tensors(values: Sequence[Tensor]) -> Any:
    """[clients, ...], without a copy where all have the very same tensor."""
    first = values[0]
    if len(values) > 1 and all(value is first for value in values):
        return first.expand(len(values), *first.shape)
    return torch.stack(list(values))

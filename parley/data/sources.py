"""Where a federation's samples come from: one small class per kind of storage, all lazy, all picklable.

A source knows how many samples client number `i` has and loads them on demand. Large data sit in plain tensor
attributes, so that processes on one machine can share them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.core.errors import InputError
from parley.core.key import Key
from parley.data.checks import SampleForm
from parley.data.client import ClientData
from parley.data.scaling import Scaling

Index = NDArray[np.int64]
Known = dict[int, Tensor]
"""Standardised tensors by the identity of what they were made of: training and held-out samples share theirs."""


class Source(ABC):
    """Samples of numbered clients."""

    @abstractmethod
    def size(self, i: int) -> int:
        """Samples of client `i`, without loading them."""

    @abstractmethod
    def load(self, i: int) -> ClientData:
        """The samples of client `i`."""

    def sizes(self, numbers: Sequence[int]) -> Index:
        """Samples of several clients."""
        return np.fromiter(map(self.size, numbers), np.int64, len(numbers))

    def form(self) -> SampleForm:
        """What all clients have in common; by default told from the first."""
        return SampleForm.of(self.load(0))

    @property
    def recipe(self) -> str | None:
        """How the samples come about, where they are made on demand; None where they are there to be looked at."""
        return None

    def tensors(self) -> tuple[Tensor, ...]:
        """All samples and who has them, where they are stored in a few tensors; nothing where they are not."""
        return ()

    def scaled(self, scaling: Scaling, known: Known) -> Source:
        """The same clients with standardised inputs; tensors in `known` are not made again."""
        return Scaled(self, scaling)

    def relabelled(self, numbers: Tensor) -> Source:
        """The same clients with class numbers[k] in place of class k."""
        return Relabelled(self, numbers)


@dataclass(frozen=True)
class Pooled(Source):
    """One pooled set; client `i` owns the rows `index[offsets[i]:offsets[i + 1]]`."""

    x: Tensor
    y: Tensor
    index: Tensor
    """int64; flat, clients one after the other."""
    offsets: Tensor
    """int64 [clients + 1]."""

    def size(self, i: int) -> int:
        return int(self.offsets[i + 1] - self.offsets[i])

    def sizes(self, numbers: Sequence[int]) -> Index:
        return np.asarray(np.diff(self.offsets.numpy())[np.asarray(numbers, np.int64)])

    def load(self, i: int) -> ClientData:
        rows = self.index[int(self.offsets[i]) : int(self.offsets[i + 1])]
        return ClientData(self.x[rows], self.y[rows])

    def form(self) -> SampleForm:
        return SampleForm(self.x.shape[1:], self.x.dtype, self.y.shape[1:], self.y.dtype)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.x, self.y, self.index, self.offsets

    def scaled(self, scaling: Scaling, known: Known) -> Source:
        return replace(self, x=_once(self.x, scaling, known))


@dataclass(frozen=True)
class InMemory(Source):
    """One `ClientData` per client, already in memory."""

    clients: tuple[ClientData, ...]

    def size(self, i: int) -> int:
        return len(self.clients[i])

    def load(self, i: int) -> ClientData:
        return self.clients[i]

    def scaled(self, scaling: Scaling, known: Known) -> Source:
        return InMemory(tuple(ClientData(_once(data.x, scaling, known), data.y) for data in self.clients))


@dataclass(frozen=True)
class Made(Source):
    """Clients made by a function of their number; nothing is kept."""

    make: Callable[[int], ClientData]
    count: int | Callable[[int], int]
    declared: str = ""
    """What the user says `make` does; changes with it."""

    def size(self, i: int) -> int:
        return self.count if isinstance(self.count, int) else int(self.count(i))

    def load(self, i: int) -> ClientData:
        data = self.make(i)
        if not isinstance(data, ClientData):
            raise InputError(f"the function that makes client {i} returned {type(data).__name__}, not ClientData.")
        if len(data) != self.size(i):
            raise InputError(f"client {i} has {len(data)} samples, but its size was given as {self.size(i)}.")
        return data

    @property
    def recipe(self) -> str:
        return self.declared


@dataclass(frozen=True)
class Elsewhere(Source):
    """Clients whose samples are not here and never will be: on their owners' machines, or gone with a program."""

    counts: tuple[int, ...] = ()
    """Samples per client, where that is known."""
    known: SampleForm | None = None
    told: str = ""
    """Digest of what clients said of their samples."""
    reason: str = "the samples of this client are on its own machine and stay there."

    def size(self, i: int) -> int:
        return self.counts[i] if self.counts else 0

    def form(self) -> SampleForm:
        return self.known or super().form()

    def load(self, i: int) -> ClientData:
        raise InputError(self.reason)

    @property
    def recipe(self) -> str | None:
        return self.told

    def scaled(self, scaling: Scaling, known: Known) -> Source:
        return self  # where the samples are it is done to them

    def relabelled(self, numbers: Tensor) -> Source:
        return self


@dataclass(frozen=True)
class HeldOut(Source):
    """One side of a random split of each client of `source`; both sides come from the same `key`.

    A client of n samples holds out round(fraction * n) of them, but always keeps at least one for training.
    """

    source: Source
    fraction: float
    key: Key
    side: Literal["train", "test"]

    def size(self, i: int) -> int:
        total = self.source.size(i)
        test = held_out_count(total, self.fraction)
        return test if self.side == "test" else total - test

    def load(self, i: int) -> ClientData:
        data = self.source.load(i)
        order = self.key.fold(i).numpy().permutation(len(data))
        test = held_out_count(len(data), self.fraction)
        rows = torch.from_numpy(np.sort(order[:test] if self.side == "test" else order[test:]))
        return ClientData(data.x[rows], data.y[rows])

    def form(self) -> SampleForm:
        return self.source.form()

    @property
    def recipe(self) -> str | None:
        inner = self.source.recipe
        return None if inner is None else f"{inner} {self.side} of {self.fraction} by {self.key.digest.hex()}"

    def scaled(self, scaling: Scaling, known: Known) -> Source:
        return replace(self, source=self.source.scaled(scaling, known))


def held_out_count(total: int, fraction: float) -> int:
    """Test samples of a client with `total` samples."""
    return max(0, min(round(fraction * total), total - 1))


@dataclass(frozen=True)
class Cached(Source):
    """Keeps the clients used last in memory; a copy in another process starts empty."""

    source: Source
    capacity: int = 64
    kept: OrderedDict[int, ClientData] = field(default_factory=OrderedDict, repr=False, compare=False)

    def size(self, i: int) -> int:
        return self.source.size(i)

    def load(self, i: int) -> ClientData:
        if i not in self.kept:
            self.kept[i] = self.source.load(i)
            while len(self.kept) > self.capacity:
                self.kept.popitem(last=False)
        self.kept.move_to_end(i)
        return self.kept[i]

    def form(self) -> SampleForm:
        return self.source.form()

    @property
    def recipe(self) -> str | None:
        return self.source.recipe

    def scaled(self, scaling: Scaling, known: Known) -> Source:
        return Cached(self.source.scaled(scaling, known), self.capacity)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Cached, (self.source, self.capacity))


@dataclass(frozen=True)
class Scaled(Source):
    """Clients of `source` whose inputs are standardised when they are loaded."""

    source: Source
    scaling: Scaling

    def size(self, i: int) -> int:
        return self.source.size(i)

    def load(self, i: int) -> ClientData:
        data = self.source.load(i)
        return ClientData(self.scaling.apply(data.x), data.y)

    def form(self) -> SampleForm:
        return self.source.form()

    @property
    def recipe(self) -> str | None:
        inner = self.source.recipe
        return None if inner is None else f"{inner} standardised"


@dataclass(frozen=True)
class Relabelled(Source):
    """Clients of `source` whose classes are numbered anew when they are loaded."""

    source: Source
    numbers: Tensor
    """int64 [classes]: the new number of each."""

    def size(self, i: int) -> int:
        return self.source.size(i)

    def load(self, i: int) -> ClientData:
        data = self.source.load(i)
        return ClientData(data.x, self.numbers[data.y])

    def form(self) -> SampleForm:
        return self.source.form()

    @property
    def recipe(self) -> str | None:
        inner = self.source.recipe
        return None if inner is None else f"{inner} relabelled {self.numbers.tolist()}"


def _once(x: Tensor, scaling: Scaling, known: Known) -> Tensor:
    if id(x) not in known:
        known[id(x)] = scaling.apply(x)
    return known[id(x)]

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
from parley.data.encoding import Encoding
from parley.data.scaling import Scaling

Index = NDArray[np.int64]
Known = dict[int, Tensor]
"""Transformed tensors by the identity of what they were made of: training and held-out samples share theirs."""


@dataclass(frozen=True)
class Step:
    """What is done to inputs when they are loaded: scaled, or encoded, texts being numbered anew first."""

    scaling: Scaling | Encoding
    categories: tuple[str, ...] = ()
    levels: tuple[tuple[str, ...], ...] = ()
    """Of the inputs as they are."""

    def apply(self, x: Tensor) -> Tensor:
        if isinstance(self.scaling, Encoding) and self.levels:
            x = self.scaling.coded(x, self.categories, self.levels)
        return self.scaling.apply(x)

    def form(self, form: SampleForm) -> SampleForm:
        """The form of what it makes of samples of this form."""
        if isinstance(self.scaling, Encoding):
            return replace(form, shape=torch.Size([len(self.scaling.inputs)]))
        return form


@dataclass(frozen=True)
class TargetScaling:
    """(y - center) / scale, in float64, rounded to the dtype of y."""

    center: tuple[float, ...]
    scale: tuple[float, ...]

    def apply(self, y: Tensor) -> Tensor:
        """Targets [n] or [n, k]."""
        center, scale = (torch.tensor(values, dtype=torch.float64) for values in (self.center, self.scale))
        return ((y.double() - center) / scale).to(y.dtype)


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

    @property
    def pool(self) -> Pooled | None:
        """All samples in two tensors, where they lie so."""
        return None

    def transformed(self, step: Step, known: Known) -> Source:
        """The same clients with inputs to which this was done; tensors in `known` are not made again."""
        return Transformed(self, step)

    def relabelled(self, numbers: Tensor) -> Source:
        """The same clients with class numbers[k] in place of class k."""
        return Relabelled(self, numbers)

    def with_targets(self, scaling: TargetScaling) -> Source:
        """The same clients with scaled targets."""
        return ScaledTargets(self, scaling)


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
        offsets, chosen = self.offsets.numpy(), np.asarray(numbers, np.int64)
        return np.asarray(offsets[chosen + 1] - offsets[chosen])

    def load(self, i: int) -> ClientData:
        begin, end = self.offsets[i : i + 2].tolist()
        rows = self.index[begin:end]
        return ClientData(self.x[rows], self.y[rows])

    def form(self) -> SampleForm:
        return SampleForm(self.x.shape[1:], self.x.dtype, self.y.shape[1:], self.y.dtype)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.x, self.y, self.index, self.offsets

    @property
    def pool(self) -> Pooled:
        return self

    def transformed(self, step: Step, known: Known) -> Source:
        return replace(self, x=_once(self.x, step, known))

    def with_targets(self, scaling: TargetScaling) -> Source:
        return replace(self, y=scaling.apply(self.y))


@dataclass(frozen=True)
class InMemory(Source):
    """One `ClientData` per client, already in memory."""

    clients: tuple[ClientData, ...]

    def size(self, i: int) -> int:
        return len(self.clients[i])

    def load(self, i: int) -> ClientData:
        return self.clients[i]

    def transformed(self, step: Step, known: Known) -> Source:
        return InMemory(tuple(ClientData(_once(data.x, step, known), data.y) for data in self.clients))


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
    digest: str = ""
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
        return self.digest

    def transformed(self, step: Step, known: Known) -> Source:
        # Where the samples are it is done to them.
        return replace(self, known=None if self.known is None else step.form(self.known))

    def relabelled(self, numbers: Tensor) -> Source:
        return self

    def with_targets(self, scaling: TargetScaling) -> Source:
        return self


@dataclass(frozen=True)
class Derived(Source):
    """The clients of another source, whose samples become something else when they are loaded."""

    source: Source

    def size(self, i: int) -> int:
        return self.source.size(i)

    def form(self) -> SampleForm:
        return self.source.form()

    @property
    def done(self) -> str:
        """What is done to the samples, as the end of their recipe."""
        return ""

    @property
    def recipe(self) -> str | None:
        before = self.source.recipe
        return None if before is None else before + self.done


@dataclass(frozen=True)
class HeldOut(Derived):
    """One side of a random split of each client of `source`; both sides come from the same `key`.

    A client of n samples holds out round(fraction * n) of them, but always keeps at least one for training. Of each
    class it holds out its share, rounded up or down.
    """

    fraction: float
    key: Key
    side: Literal["train", "test"]

    def size(self, i: int) -> int:
        total = self.source.size(i)
        test = held_out_count(total, self.fraction)
        return test if self.side == "test" else total - test

    def load(self, i: int) -> ClientData:
        data = self.source.load(i)
        test = held_out(strata(data.y), np.array([len(data)]), self.fraction, self.key.fold(i).numpy())
        rows = torch.from_numpy(np.flatnonzero(test if self.side == "test" else ~test))
        return ClientData(data.x[rows], data.y[rows])

    @property
    def done(self) -> str:
        return f" {self.side} of {self.fraction} by {self.key.digest.hex()}"

    def transformed(self, step: Step, known: Known) -> Source:
        return replace(self, source=self.source.transformed(step, known))


def held_out_count(total: int, fraction: float) -> int:
    """Test samples of a client with `total` samples."""
    return max(0, min(round(fraction * total), total - 1))


def strata(y: Tensor) -> NDArray[np.int64]:
    """What samples are held out by: their class; all alike where a sample has no class, or several."""
    whole = y.ndim == 1 and not y.is_floating_point()
    return y.numpy().astype(np.int64) if whole else np.zeros(len(y), np.int64)


def held_out(
    classes: NDArray[np.int64], sizes: NDArray[np.int64], fraction: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Which samples are held out, of clients that follow one another: a random share of each class at each client.

    A client's samples, class after class and in random order inside a class, are taken at equal distances from a random
    start, which gives each class its share, rounded up or down, and the client `held_out_count`.
    """
    tests = np.clip(np.rint(fraction * sizes).astype(np.int64), 0, np.maximum(sizes - 1, 0))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    rank = np.arange(len(classes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    start = rng.integers(0, np.maximum(sizes, 1))[owner]
    n, m = sizes[owner], tests[owner]
    held = np.empty(len(classes), np.bool_)
    order = np.lexsort((rng.random(len(classes)), classes, owner))
    held[order] = ((rank + 1) * m + start) // n > (rank * m + start) // n
    return held


@dataclass(frozen=True)
class Cached(Derived):
    """Keeps the clients used last in memory; a copy in another process starts empty."""

    capacity: int = 64
    kept: OrderedDict[int, ClientData] = field(default_factory=OrderedDict, repr=False, compare=False)

    def load(self, i: int) -> ClientData:
        if i not in self.kept:
            self.kept[i] = self.source.load(i)
            while len(self.kept) > self.capacity:
                self.kept.popitem(last=False)
        self.kept.move_to_end(i)
        return self.kept[i]

    def transformed(self, step: Step, known: Known) -> Source:
        return Cached(self.source.transformed(step, known), self.capacity)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Cached, (self.source, self.capacity))


@dataclass(frozen=True)
class Transformed(Derived):
    """Clients of `source` whose inputs are scaled or encoded when they are loaded."""

    step: Step

    def load(self, i: int) -> ClientData:
        data = self.source.load(i)
        return ClientData(self.step.apply(data.x), data.y)

    def form(self) -> SampleForm:
        return self.step.form(self.source.form())

    @property
    def done(self) -> str:
        return " standardised"


@dataclass(frozen=True)
class Relabelled(Derived):
    """Clients of `source` whose classes are numbered anew when they are loaded."""

    numbers: Tensor
    """int64 [classes]: the new number of each."""
    only: frozenset[int] | None = None
    """The clients to which it is done; None: all."""

    def load(self, i: int) -> ClientData:
        data = self.source.load(i)
        return data if self.only is not None and i not in self.only else ClientData(data.x, self.numbers[data.y])

    @property
    def done(self) -> str:
        return f" relabelled {self.numbers.tolist()}"


@dataclass(frozen=True)
class ScaledTargets(Derived):
    """Clients of `source` whose targets are scaled when they are loaded."""

    scaling: TargetScaling

    def load(self, i: int) -> ClientData:
        data = self.source.load(i)
        return ClientData(data.x, self.scaling.apply(data.y))

    @property
    def done(self) -> str:
        return f" targets by {self.scaling.center}, {self.scaling.scale}"


def _once(x: Tensor, step: Step, known: Known) -> Tensor:
    if id(x) not in known:
        known[id(x)] = step.apply(x)
    return known[id(x)]

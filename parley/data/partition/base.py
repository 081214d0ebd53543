"""What a partitioner is, and the few steps most of them share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.registry import Registry
from parley.core.show import Brief

Index = NDArray[np.int64]
LARGEST = 1e300
"""Of a setting; beyond, random draws overflow."""


@dataclass(frozen=True, eq=False, repr=False)
class Partition(Brief, Sequence[Index]):
    """Sample numbers per client, stored flat: client i owns `rows[offsets[i]:offsets[i + 1]]`."""

    rows: Index
    offsets: Index
    groups: Index | None = None
    """The natural group each client stands for, where clients are natural ones."""

    @classmethod
    def of(cls, parts: Iterable[NDArray[Any]], groups: Index | None = None) -> Partition:
        """From one array per client; each client's samples are put in ascending order."""
        lists = [np.sort(part).astype(np.int64, copy=False) for part in parts]
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in lists])]).astype(np.int64)
        return cls(np.concatenate(lists) if lists else np.empty(0, np.int64), offsets, groups)

    @classmethod
    def by_owner(cls, owner: NDArray[Any], clients: int, groups: Index | None = None) -> Partition:
        """From each sample's client number; samples owned by -1 are left out."""
        order = np.argsort(owner, kind="stable").astype(np.int64)
        counts = np.bincount(owner[owner >= 0], minlength=clients)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(order[len(owner) - offsets[-1] :], offsets, groups)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, item: int) -> Index: ...
    @overload
    def __getitem__(self, item: slice) -> list[Index]: ...
    def __getitem__(self, item: int | slice) -> Index | list[Index]:
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        if not -len(self) <= item < len(self):
            raise IndexError(item)
        item %= len(self)
        return self.rows[self.offsets[item] : self.offsets[item + 1]]


class Partitioner(Protocol):
    """Deals samples to clients; the same key gives the same partition."""

    def __call__(
        self,
        labels: NDArray[Any],
        clients: int | None,
        key: Key,
        *,
        groups: NDArray[Any] | None = None,
        coarse: NDArray[Any] | None = None,
    ) -> Partition:
        """`labels`: one integer per sample; `groups`: its natural client; `coarse`: its coarse label."""


partitioners: Registry[type[Partitioner]] = Registry("partitioner")

P = TypeVar("P", bound=type[Partitioner])


def partitioner(name: str) -> Callable[[P], P]:
    """Registers a partitioner class under `name`."""
    return partitioners(name)


def check_finite(settings: Any) -> None:
    """Refuse NaN and numbers near infinity among the fields of a partitioner: they deal samples twice or never."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, float) and not abs(value) <= LARGEST:
            raise InputError(f"{type(settings).__name__} needs a finite {field.name}, not {value}.")


def check_clients(samples: int, clients: int | None, each: int = 1) -> int:
    """The number of clients, if every one of them can get `each` samples."""
    if clients is None:
        raise InputError("this partitioner needs a number of clients; pass clients=... .")
    if clients < 1:
        raise InputError(f"the number of clients must be at least 1, not {clients}.")
    if clients * each > samples:
        raise InputError(f"{samples} samples cannot give {clients} clients {each} each; use fewer clients.")
    return clients


def even_sizes(samples: int, clients: int) -> Index:
    """Sizes that differ by at most one and sum to `samples`."""
    sizes = np.full(clients, samples // clients, np.int64)
    sizes[: samples % clients] += 1
    return sizes


def sort_by_label(labels: NDArray[Any], rng: np.random.Generator) -> Index:
    """Sample numbers in label order, at random within a label."""
    order = rng.permutation(len(labels))
    return np.asarray(order[np.argsort(labels[order], kind="stable")], np.int64)


def cut(order: NDArray[Any], sizes: NDArray[Any]) -> list[NDArray[Any]]:
    """`order` in consecutive pieces of the given sizes."""
    return np.split(order, np.cumsum(sizes)[:-1])


def owners_from_counts(labels: NDArray[Any], counts: NDArray[Any], rng: np.random.Generator) -> Index:
    """Each sample's client, so that client i gets `counts[i, c]` random samples of the c-th smallest label.

    Samples that the counts leave over belong to nobody (-1).
    """
    owner = np.full(len(labels), -1, np.int64)
    for c, label in enumerate(np.unique(labels)):
        members = rng.permutation(np.flatnonzero(labels == label))
        dealt = np.repeat(np.arange(len(counts)), counts[:, c])
        owner[members[: len(dealt)]] = dealt
    return owner

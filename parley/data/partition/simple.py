"""Partitioners with a one-line definition: iid, sorted, shards, s-homogeneity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError
from parley.core.key import Key
from parley.data.partition.base import (
    Partition,
    check_clients,
    check_finite,
    cut,
    even_sizes,
    partitioner,
    sort_by_label,
)


@partitioner("iid")
@dataclass(frozen=True)
class IID:
    """Random equal parts: sizes differ by at most one."""

    def __call__(
        self,
        labels: NDArray[Any],
        clients: int | None,
        key: Key,
        *,
        groups: NDArray[Any] | None = None,
        coarse: NDArray[Any] | None = None,
    ) -> Partition:
        clients = check_clients(len(labels), clients)
        return Partition.of(cut(key.numpy().permutation(len(labels)), even_sizes(len(labels), clients)))


@partitioner("sorted")
@dataclass(frozen=True)
class Sorted:
    """All samples in label order, cut into consecutive equal parts: the most extreme label skew."""

    by: Literal["label", "group"] = "label"
    """In the order of labels, or of natural groups (Gholami and Seferoglu sorts MultiNLI by genre)."""

    def __post_init__(self) -> None:
        if self.by not in ("label", "group"):
            raise InputError(f"Sorted goes by 'label' or by 'group', not '{self.by}'.")

    def __call__(
        self,
        labels: NDArray[Any],
        clients: int | None,
        key: Key,
        *,
        groups: NDArray[Any] | None = None,
        coarse: NDArray[Any] | None = None,
    ) -> Partition:
        clients = check_clients(len(labels), clients)
        if self.by == "group":
            if groups is None:
                raise InputError("Sorted by group needs a data set with natural clients, such as multinli.")
            labels = groups
        return Partition.of(cut(sort_by_label(labels, key.numpy()), even_sizes(len(labels), clients)))


@partitioner("shards")
@dataclass(frozen=True)
class Shards:
    """The pathological split of McMahan et al. (2017): label-sorted shards, a few random ones per client.

    The samples in label order are cut into `clients * per_client` equal shards (sizes differ by at most one) and dealt
    at random. Where shards lie within one class a client sees at most `per_client` classes.
    """

    per_client: int = 2
    """Shards per client."""

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise InputError(f"Shards needs at least 1 shard per client, not {self.per_client}.")

    def __call__(
        self,
        labels: NDArray[Any],
        clients: int | None,
        key: Key,
        *,
        groups: NDArray[Any] | None = None,
        coarse: NDArray[Any] | None = None,
    ) -> Partition:
        clients = check_clients(len(labels), clients, self.per_client)
        rng = key.numpy()
        count = clients * self.per_client
        shards = cut(sort_by_label(labels, rng), even_sizes(len(labels), count))
        dealt = rng.permutation(count).reshape(clients, self.per_client)
        return Partition.of(np.concatenate([shards[s] for s in row]) for row in dealt)


@partitioner("s-homogeneity")
@dataclass(frozen=True)
class SHomogeneity:
    """A random share s is spread evenly; the rest is sorted by label and dealt in sequence (Shen et al.).

    Every client gets its even share of both pools, so sizes differ by at most one; s = 1 is iid, s = 0 is sorted.
    """

    s: float = 0.5
    """Share of samples that is spread evenly, between 0 and 1."""

    def __post_init__(self) -> None:
        check_finite(self)
        if not 0.0 <= self.s <= 1.0:
            raise InputError(f"SHomogeneity needs s between 0 and 1, not {self.s}.")

    def __call__(
        self,
        labels: NDArray[Any],
        clients: int | None,
        key: Key,
        *,
        groups: NDArray[Any] | None = None,
        coarse: NDArray[Any] | None = None,
    ) -> Partition:
        clients = check_clients(len(labels), clients)
        rng = key.numpy()
        order = rng.permutation(len(labels))
        even, rest = np.split(order, [round(self.s * len(labels))])
        even_share = even_sizes(len(even), clients)
        rest = rest[sort_by_label(labels[rest], rng)]
        rest_share = even_sizes(len(labels), clients) - even_share
        pairs = zip(cut(even, even_share), cut(rest, rest_share), strict=True)
        return Partition.of(np.concatenate(pair) for pair in pairs)

"""Clients as the data have them: writers, roles, genres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError
from parley.core.key import Key
from parley.data.partition.base import Partition, cut, even_sizes, partitioner


@partitioner("natural")
@dataclass(frozen=True)
class Natural:
    """One client per natural group, in group order; `clients` picks that many of them at random (default: all).

    Each sample of a chosen group is used exactly once.
    """

    min_samples: int = 1
    """Groups with fewer samples are left out."""
    shards: int = 1
    """Cut each group into this many random equal clients, for data with few groups; `clients` counts groups."""

    def __post_init__(self) -> None:
        if self.min_samples < 1 or self.shards < 1:
            raise InputError("Natural needs min_samples and shards of at least 1.")

    def __call__(
        self,
        labels: NDArray[Any],
        clients: int | None,
        key: Key,
        *,
        groups: NDArray[Any] | None = None,
        coarse: NDArray[Any] | None = None,
    ) -> Partition:
        if groups is None:
            raise InputError("Natural needs a data set with natural clients, such as mnist-writers or shakespeare.")
        rng = key.numpy()
        names, sizes = np.unique(groups, return_counts=True)
        names = names[sizes >= max(self.min_samples, self.shards)]
        if clients is not None:
            if not 1 <= clients <= len(names):
                raise InputError(f"the data have {len(names)} natural clients large enough; {clients} cannot be had.")
            names = np.sort(rng.choice(names, clients, replace=False))
        if len(names) == 0:
            raise InputError(f"no natural client has {self.min_samples} samples; lower min_samples.")
        number = np.full(int(groups.max()) + 1, -1, np.int64)
        number[names] = np.arange(len(names))
        whole = Partition.by_owner(number[groups], len(names), names)
        if self.shards == 1:
            return whole
        parts = [part for rows in whole for part in cut(rng.permutation(rows), even_sizes(len(rows), self.shards))]
        return Partition.of(parts, np.repeat(names, self.shards))

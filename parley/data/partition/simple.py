"""Partitioners with a one-line definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from parley.core.key import Key
from parley.data.partition.base import Partition, check_clients, cut, even_sizes, partitioner


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

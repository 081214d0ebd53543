"""Pachinko allocation over coarse and fine labels (Reddi et al., Adaptive Federated Optimization, 2021, appendix)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError
from parley.core.key import Key
from parley.data.partition.base import (
    Index,
    Partition,
    check_clients,
    check_finite,
    even_sizes,
    owners_from_counts,
    partitioner,
)
from parley.data.partition.dirichlet import deal


@partitioner("pachinko")
@dataclass(frozen=True)
class Pachinko:
    """Hierarchical label skew: each client prefers some coarse labels and, mildly, some fine labels within them.

    One client after the other draws theta ~ Dir(alpha) over the coarse labels and theta_c ~ Dir(beta) over the fine
    labels of each coarse label c. Each of its samples falls through both levels and is taken from the pool without
    replacement; labels that ran out are left out and the rest renormalised. Used with CIFAR-100 (500 clients of 100).
    Every sample is used at most once; exactly once with `samples=None`.
    """

    alpha: float = 0.1
    """Concentration over the coarse labels."""
    beta: float = 10.0
    """Concentration over the fine labels of one coarse label."""
    samples: int | None = None
    """Samples per client; None deals out the whole set in sizes that differ by at most one."""

    def __post_init__(self) -> None:
        check_finite(self)
        if not (self.alpha > 0 and self.beta > 0):
            raise InputError(f"Pachinko needs alpha and beta above 0, not {self.alpha} and {self.beta}.")
        if self.samples is not None and self.samples < 1:
            raise InputError(f"Pachinko needs at least 1 sample per client, not {self.samples}.")

    def __call__(
        self,
        labels: NDArray[Any],
        clients: int | None,
        key: Key,
        *,
        groups: NDArray[Any] | None = None,
        coarse: NDArray[Any] | None = None,
    ) -> Partition:
        if coarse is None:
            raise InputError("Pachinko needs a data set with coarse labels, such as cifar100.")
        clients = check_clients(len(labels), clients, self.samples or 1)
        rng = key.numpy()
        sizes = even_sizes(len(labels), clients) if self.samples is None else np.full(clients, self.samples)
        fine, stock = np.unique(labels, return_counts=True)
        families = [np.searchsorted(fine, np.unique(labels[coarse == c])) for c in np.unique(coarse)]
        if sum(map(len, families)) != len(fine):
            raise InputError("Pachinko needs every fine label to belong to exactly one coarse label.")
        counts = np.zeros((clients, len(fine)), np.int64)
        for client, size in enumerate(sizes):
            counts[client] = self._fall(int(size), families, stock, rng)
            stock = stock - counts[client]
        return Partition.by_owner(owners_from_counts(labels, counts, rng), clients)

    def _fall(self, size: int, families: list[Index], stock: Index, rng: np.random.Generator) -> Index:
        """How many of each fine label one client takes.

        Drawing the counts at once and redrawing what exceeds the stock has the same law as drawing one by one and
        renormalising whenever a label runs out: a draw of an exhausted label is a draw that is rejected.
        """
        taken = np.zeros_like(stock)
        left = np.array([stock[family].sum() for family in families])
        theta = rng.dirichlet(np.full(len(families), self.alpha))
        wanted = deal(theta[None], np.array([size]), left, rng)[0]
        for c in np.flatnonzero(wanted):
            theta_c = rng.dirichlet(np.full(len(families[c]), self.beta))
            taken[families[c]] = deal(theta_c[None], wanted[c : c + 1], stock[families[c]], rng)[0]
        return taken

"""Label skew by Dirichlet draws, per client (Hsu et al. 2019; Yue et al.) or per class (Yurochkin et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

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


@partitioner("dirichlet")
@dataclass(frozen=True)
class Dirichlet:
    """Label shares drawn from a symmetric Dirichlet distribution: small alpha, few classes per client.

    `by="client"`: client i draws q_i ~ Dir(alpha, ..., alpha) over the classes and wants equally many samples as
    everyone else (sizes differ by at most one), split by Multinomial(q_i). Wishes for a class that exceed its stock
    are cut by a fair draw, and what is left open is drawn again from q_i restricted to the classes still in stock,
    until all samples are dealt; every pass empties at least one class. Every sample is used exactly once.

    `by="class"`: the samples of each class are divided over the clients by p ~ Dir(alpha, ..., alpha), so sizes vary
    too. Clients left below `min_samples` take random samples from the largest client. Every sample is used once.
    """

    alpha: float = 0.5
    """Concentration, the same for every class (or client); 100 is close to iid, 0.1 strongly skewed."""
    by: Literal["client", "class"] = "client"
    """Who draws: each client over the classes, or each class over the clients."""
    samples: int | None = None
    """Samples per client (`by="client"` only); None deals out the whole set."""
    overlap: bool = False
    """Each client draws `samples` from the whole set, without repeats within the client (Yue et al.). Clients may
    share samples, some may go unused, and a client that wants more of a class than exists gets all of it.
    """
    min_samples: int = 1
    """Least samples per client for `by="class"`."""

    def __post_init__(self) -> None:
        check_finite(self)
        if not self.alpha > 0:
            raise InputError(f"Dirichlet needs alpha above 0, not {self.alpha}.")
        if self.by not in ("client", "class"):
            raise InputError(f"Dirichlet's `by` must be 'client' or 'class', not '{self.by}'.")
        if self.by == "class" and (self.samples is not None or self.overlap):
            raise InputError("Dirichlet's `samples` and `overlap` need by='client'.")
        if self.overlap and self.samples is None:
            raise InputError("Dirichlet with overlap=True needs `samples`, the number per client.")
        if self.min_samples < 1 or (self.samples is not None and self.samples < 1):
            raise InputError("Dirichlet's `samples` and `min_samples` must be at least 1.")

    def __call__(
        self,
        labels: NDArray[Any],
        clients: int | None,
        key: Key,
        *,
        groups: NDArray[Any] | None = None,
        coarse: NDArray[Any] | None = None,
    ) -> Partition:
        rng = key.numpy()
        if self.by == "class":
            clients = check_clients(len(labels), clients, self.min_samples)
            owner = self._divide_classes(labels, clients, rng)
            return Partition.by_owner(owner, clients)
        if self.overlap:
            return self._draw_with_overlap(labels, check_clients(len(labels), clients, each=0), rng)
        clients = check_clients(len(labels), clients, self.samples or 1)
        sizes = even_sizes(len(labels), clients) if self.samples is None else np.full(clients, self.samples)
        stock = np.unique(labels, return_counts=True)[1]
        shares = rng.dirichlet(np.full(len(stock), self.alpha), clients)
        return Partition.by_owner(owners_from_counts(labels, deal(shares, sizes, stock, rng), rng), clients)

    def _divide_classes(self, labels: NDArray[Any], clients: int, rng: np.random.Generator) -> Index:
        stock = np.unique(labels, return_counts=True)[1]
        edges = np.cumsum(rng.dirichlet(np.full(clients, self.alpha), len(stock)), axis=1)
        edges[:, -1] = 1.0
        ends = np.rint(edges * stock[:, None]).astype(np.int64)
        owner = owners_from_counts(labels, np.diff(ends, axis=1, prepend=0).T, rng)
        return refill(owner, clients, self.min_samples, rng)

    def _draw_with_overlap(self, labels: NDArray[Any], clients: int, rng: np.random.Generator) -> Partition:
        members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        stock = np.array([len(m) for m in members])
        wishes = rng.multinomial(self.samples or 0, rng.dirichlet(np.full(len(stock), self.alpha), clients))
        counts = np.minimum(wishes, stock)
        return Partition.of(
            np.concatenate([rng.choice(m, n, replace=False) for m, n in zip(members, row, strict=True)])
            for row in counts
        )


def deal(shares: NDArray[Any], sizes: NDArray[Any], stock: NDArray[Any], rng: np.random.Generator) -> Index:
    """Counts [client, class] with row sums `sizes` and column sums at most `stock`, drawn by each client's `shares`."""
    counts = np.zeros(shares.shape, np.int64)
    need, left = sizes.astype(np.int64), stock.astype(np.int64)
    while need.any():
        # A client whose own classes are all gone takes from what is left, in proportion.
        weights = shares * (left > 0)
        hopeless = weights.sum(axis=1) < 1e-300
        weights[hopeless] = left
        wishes = rng.multinomial(need, weights / weights.sum(axis=1, keepdims=True))
        for c in np.flatnonzero(wishes.sum(axis=0) > left):
            wishes[:, c] = rng.multivariate_hypergeometric(wishes[:, c], left[c], method="marginals")
        counts += wishes
        need, left = need - wishes.sum(axis=1), left - wishes.sum(axis=0)
    return counts


def refill(owner: Index, clients: int, least: int, rng: np.random.Generator) -> Index:
    """Gives clients with fewer than `least` samples random ones of whoever is largest at that moment."""
    sizes = np.bincount(owner, minlength=clients)
    for poor in np.flatnonzero(sizes < least):
        while sizes[poor] < least:
            rich = int(sizes.argmax())
            moved = rng.choice(np.flatnonzero(owner == rich))
            owner[moved] = poor
            sizes[rich] -= 1
            sizes[poor] += 1
    return owner

"""Clients that differ in how much they have, not in what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError
from parley.core.key import Key
from parley.data.partition.base import Index, Partition, check_clients, check_finite, cut, partitioner


@partitioner("quantity")
@dataclass(frozen=True)
class QuantitySkew:
    """Random samples, unequal sizes: each client gets `min_samples` and a share of the rest by a law of weights.

    The weights are Dir(alpha, ..., alpha), exp(sigma * N(0, 1)), or rank^-exponent with ranks dealt at random. The
    shares are rounded by largest remainder, so every sample is used exactly once.
    """

    law: Literal["dirichlet", "lognormal", "power"] = "dirichlet"
    """Where the weights come from."""
    alpha: float = 0.5
    """Dirichlet concentration; small is more unequal."""
    sigma: float = 1.0
    """Log-normal spread; 0 gives equal sizes."""
    exponent: float = 1.0
    """Power-law exponent; 0 gives equal sizes."""
    min_samples: int = 1
    """Samples every client has at least."""

    def __post_init__(self) -> None:
        check_finite(self)
        if self.law not in ("dirichlet", "lognormal", "power"):
            raise InputError(f"QuantitySkew's law must be 'dirichlet', 'lognormal' or 'power', not '{self.law}'.")
        if not self.alpha > 0 or self.sigma < 0 or self.exponent < 0 or self.min_samples < 1:
            raise InputError("QuantitySkew needs alpha above 0, sigma and exponent at least 0, min_samples at least 1.")

    def __call__(
        self,
        labels: NDArray[Any],
        clients: int | None,
        key: Key,
        *,
        groups: NDArray[Any] | None = None,
        coarse: NDArray[Any] | None = None,
    ) -> Partition:
        clients = check_clients(len(labels), clients, self.min_samples)
        rng = key.numpy()
        sizes = self.min_samples + apportion(len(labels) - clients * self.min_samples, self._weights(clients, rng))
        return Partition.of(cut(rng.permutation(len(labels)), sizes))

    def _weights(self, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        if self.law == "dirichlet":
            return rng.dirichlet(np.full(clients, self.alpha))
        if self.law == "lognormal":
            exponents = self.sigma * rng.standard_normal(clients)
            # A common factor keeps weights from overflowing.
            return np.asarray(np.exp(exponents - exponents.max()), np.float64)
        return np.exp(-self.exponent * np.log1p(rng.permutation(clients)))


def apportion(total: int, weights: NDArray[np.float64]) -> Index:
    """Whole numbers that sum to `total` and are nearest to its division by `weights` (largest remainder)."""
    exact = total * weights / weights.sum()
    counts: Index = np.floor(exact).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return counts

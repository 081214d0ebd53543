"""The exact expected error of f_t for a known truth, split into bias, variance and heterogeneity (Su et al., eq. 44).

f_t(x) - f(x) = L^t (f_0 - f)(x) + (I - L^t) Delta_f + (I - L^t) xi,    L = I - eta K P.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from parley.theory.arguments import check_sizes
from parley.theory.kernel.basis import Basis, exact_basis
from parley.theory.kernel.decay import as_rounds, kept, learned
from parley.theory.kernel.federation import KernelFederation
from parley.theory.theta import Array


@dataclass(frozen=True, eq=False)
class ExpectedError:
    """E ||f_t - f||_N^2 and its parts against a target f. Each method takes a round or a list of T rounds.

    Build it with `expected_error`. Noise is independent, with variance sigma^2 (an upper bound if it is smaller).
    """

    federation: KernelFederation
    basis: Basis
    gap: Array = field(repr=False)
    """f_0(x) - f(x), [N]."""
    delta: Array = field(repr=False)
    """Delta_f of (21): the clients' own truths minus f at their points, [N]."""
    sigma: float

    def total(self, t: npt.ArrayLike) -> Array:
        """E ||f_t - f||_N^2. Bias and heterogeneity do not add up without their cross term; this has it."""
        mean = self._kept(self.gap, t) + self._learned(self.delta, t)
        return _mean_square(mean, t) + self.variance(t)

    def bias(self, t: npt.ArrayLike) -> Array:
        """||L^t (f_0 - f)(x)||^2 / N."""
        return _mean_square(self._kept(self.gap, t), t)

    def heterogeneity(self, t: npt.ArrayLike) -> Array:
        """||(I - L^t) Delta_f||^2 / N."""
        return _mean_square(self._learned(self.delta, t), t)

    def variance(self, t: npt.ArrayLike) -> Array:
        """sigma^2 ||I - L^t||_F^2 / N."""
        share = learned(self._steps, as_rounds(t))
        squares = np.einsum("it,ij,jt->t", share, self._overlap, share, optimize=True)
        values = self.sigma**2 * squares / len(self.gap)
        return np.asarray(values if np.ndim(t) else values[0], dtype=np.float64)

    def best_round(self, last: int = 10**9) -> int:
        """The round t <= last with the least total error: a search over all rounds to 64, then a refined grid."""
        grid = np.unique(np.concatenate([np.arange(65), np.geomspace(64, last, 400).round()])).clip(0, last)
        while True:
            best = int(np.argmin(self.total(grid)))
            low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
            if high - low <= 2:
                return int(grid[best])
            grid = np.unique(np.linspace(low, high, 101).round())

    @cached_property
    def _steps(self) -> Array:
        return np.minimum(self.federation.method.eta * self.basis.values, 1.0)[:, None]

    @cached_property
    def _overlap(self) -> Array:
        """(U' P^-1 U) * (U' P U) elementwise, [r, r]: ||I - L^t||_F^2 is a quadratic form in the learned shares."""
        vectors, blocks = self.basis.vectors, self.federation.blocks
        return np.asarray((vectors.T @ blocks.apply(vectors, -1.0)) * (vectors.T @ blocks.apply(vectors)))

    def _coordinates(self, values: Array) -> Array:
        return np.asarray(self.basis.vectors.T @ self.federation.blocks.apply(values, 0.5), dtype=np.float64)

    def _learned(self, values: Array, t: npt.ArrayLike) -> Array:
        share = learned(self._steps, as_rounds(t)) * self._coordinates(values)[:, None]
        return self.federation.blocks.apply(self.basis.vectors @ share, -0.5)

    def _kept(self, values: Array, t: npt.ArrayLike) -> Array:
        if not self.basis.complete:
            return np.asarray(values[:, None] - self._learned(values, t), dtype=np.float64)
        share = kept(self._steps, as_rounds(t)) * self._coordinates(values)[:, None]
        return self.federation.blocks.apply(self.basis.vectors @ share, -0.5)


def expected_error(
    federation: KernelFederation,
    target: npt.ArrayLike,
    sigma: float,
    truths: npt.ArrayLike | None = None,
    start: npt.ArrayLike | None = None,
    basis: Basis | None = None,
) -> ExpectedError:
    """`target` is f at the training points, `truths` the clients' f_i* there (default: f), `start` f_0 (default: 0)."""
    check_sizes(sigma=sigma)
    f = federation.samples.values(target, "target")
    targets = f if truths is None else federation.samples.values(truths, "truths")
    initial = np.zeros_like(f) if start is None else federation.samples.values(start, "start")
    resolved = exact_basis(federation) if basis is None else basis
    return ExpectedError(federation, resolved, initial - f, targets - f, sigma)


def _mean_square(values: Array, t: npt.ArrayLike) -> Array:
    squares = (values**2).mean(axis=0)
    return np.asarray(squares if np.ndim(t) else squares[0], dtype=np.float64)

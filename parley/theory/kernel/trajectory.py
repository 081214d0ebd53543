"""All rounds of one training run in closed form, its limit, and predictions at new points (Su et al., Proposition 3).

trajectory(federation, y).at([1, 10, 100])            # f_t at the training points, [N, 3]
trajectory(federation, y).predict(x_new, 100)         # f_100 at new points
trajectory(federation, y, basis=lowrank_basis(federation, 1e-8))
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError
from parley.theory.kernel.basis import Basis, exact_basis, krylov_basis
from parley.theory.kernel.decay import as_rounds, gathered, learned
from parley.theory.kernel.federation import KernelFederation
from parley.theory.kernel.gram import cross_product
from parley.theory.kernel.points import as_points
from parley.theory.theta import Array


@dataclass(frozen=True, eq=False)
class Trajectory:
    """f_t for every t: f_t = f_0 + (1/N) sum_j c_t[j] k(., x_j). Build it with `trajectory` or `krylov_trajectory`.

    `t` is a round or a list of T rounds; results are [N] or [N, T]. In the low-rank case all of it holds exactly for
    the low-rank kernel, with the exact P.
    """

    federation: KernelFederation
    basis: Basis
    start: Array = field(repr=False)
    """f_0 at the training points, [N]."""
    residual: Array = field(repr=False)
    """P^1/2 (y - f_0), [N]."""

    def at(self, t: npt.ArrayLike) -> Array:
        """f_t at the training points."""
        rounds = self._rounds(t)
        fitted = self._fitted(learned(self._steps, rounds))
        return fitted if rounds.ndim else fitted[:, 0]

    def limit(self) -> Array:
        """f_t at the training points as t -> infinity, [N]: y projected, in the metric of P, on what K can express.

        Directions whose Lambda is within rounding error of zero are never learned, here and in `at`.
        """
        self._check_served(np.inf)
        return self._fitted((self.basis.values > 0).astype(np.float64)[:, None])[:, 0]

    def coefficients(self, t: npt.ArrayLike) -> Array:
        """c_t."""
        rounds = self._rounds(t)
        eta = self.federation.method.eta
        parts = self.basis.vectors @ (eta * gathered(self._steps, rounds) * self._weights[:, None])
        if not self.basis.complete:
            outside = self.residual - self.basis.vectors @ self._weights
            parts = parts + outside[:, None] * eta * rounds
        result = self.federation.blocks.apply(np.asarray(parts, dtype=np.float64), 0.5)
        return result if rounds.ndim else result[:, 0]

    def predict(self, x: npt.ArrayLike, t: npt.ArrayLike, start: npt.ArrayLike = 0.0) -> Array:
        """f_t at new points [m, p]; `start` is f_0 there, a number or [m]. Gives [m] or [m, T]."""
        points, known = as_points(x, "the new points"), self.federation.samples.x
        if points.shape[1] != known.shape[1]:
            raise InputError(f"the new points have {points.shape[1]} columns, the clients' {known.shape[1]}.")
        sums = cross_product(self.federation.kernel, points, known, self.coefficients(t))
        initial = np.asarray(start, dtype=np.float64)
        return sums + (initial[:, None] if sums.ndim == 2 and initial.ndim else initial)

    def distance(self, t: npt.ArrayLike) -> Array:
        """||f_t - f_0||_H, a number or [T]."""
        rounds = self._rounds(t)
        size = self.federation.method.eta * gathered(self._steps, rounds) * self._weights[:, None]
        squares = self.basis.values @ size**2 / len(self.start)
        return np.asarray(np.sqrt(squares) if rounds.ndim else np.sqrt(squares[0]), dtype=np.float64)

    def _fitted(self, share: Array) -> Array:
        moved = self.federation.blocks.apply(self.basis.vectors @ (share * self._weights[:, None]), -0.5)
        return np.asarray(self.start[:, None] + moved, dtype=np.float64)

    def _rounds(self, t: npt.ArrayLike) -> Array:
        rounds = as_rounds(t)
        self._check_served(float(rounds.max()))
        return rounds

    def _check_served(self, last: float) -> None:
        if last > self.basis.rounds:
            raise InputError(
                f"this Krylov basis serves rounds up to {self.basis.rounds:g}; ask for more rounds at once."
            )

    @cached_property
    def _steps(self) -> Array:
        return np.minimum(self.federation.method.eta * self.basis.values, 1.0)[:, None]

    @cached_property
    def _weights(self) -> Array:
        return np.asarray(self.basis.vectors.T @ self.residual, dtype=np.float64)


def trajectory(
    federation: KernelFederation,
    y: npt.ArrayLike,
    start: npt.ArrayLike | None = None,
    basis: Basis | None = None,
) -> Trajectory:
    """The run from f_0 = `start` at the training points (default 0) on targets y; a `basis` serves many runs."""
    targets, initial = _values(federation, y, start)
    resolved = exact_basis(federation) if basis is None else basis
    return Trajectory(federation, resolved, initial, federation.blocks.apply(targets - initial, 0.5))


def krylov_trajectory(
    federation: KernelFederation,
    y: npt.ArrayLike,
    rounds: npt.ArrayLike,
    start: npt.ArrayLike | None = None,
    tolerance: float = 1e-12,
) -> Trajectory:
    """As `trajectory`, for rounds up to max(rounds) only, from products with K alone; it has no limit."""
    targets, initial = _values(federation, y, start)
    residual = federation.blocks.apply(targets - initial, 0.5)
    return Trajectory(federation, krylov_basis(federation, residual, rounds, tolerance), initial, residual)


def _values(federation: KernelFederation, y: npt.ArrayLike, start: npt.ArrayLike | None) -> tuple[Array, Array]:
    targets = federation.samples.values(y)
    return targets, np.zeros_like(targets) if start is None else federation.samples.values(start, "start")

"""Low-rank kernels with a stated error: pivoted Cholesky of K, and Nystrom features whose cost is linear in N."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from parley.core.errors import InputError
from parley.theory.arguments import check_whole
from parley.theory.kernel.kernels import Kernel
from parley.theory.kernel.points import as_points
from parley.theory.theta import Array


@dataclass(frozen=True, eq=False)
class Cholesky:
    """[k(x_i, x_j)] = factor factor' + E with E positive semidefinite and trace(E) = residual."""

    factor: Array
    """[n, r]."""
    pivots: tuple[int, ...]
    """The r points that were taken, in order."""
    residual: float
    """trace(E), so no eigenvalue of the matrix is off by more; of the matrix of k itself, not k / N."""


def pivoted_cholesky(kernel: Kernel, x: Array, tolerance: float, max_rank: int | None = None) -> Cholesky:
    """Takes the worst represented point until trace(E) <= tolerance * trace, or `max_rank` points are taken.

    Costs n r^2 time and n r memory; the kernel is evaluated at n r pairs only.
    """
    if not 0 < tolerance < 1:
        raise InputError(f"the tolerance must be between 0 and 1, not {tolerance:g}.")
    if max_rank is not None:
        check_whole("the largest rank", max_rank)
    missing = kernel.diagonal(x).astype(np.float64)
    total = float(missing.sum())
    limit = len(x) if max_rank is None else min(max_rank, len(x))
    factor = np.empty((len(x), min(64, limit)), order="F")
    pivots: list[int] = []
    while len(pivots) < limit and float(missing.sum()) > tolerance * total:
        rank, pivot = len(pivots), int(np.argmax(missing))
        # Below this, what is missing is rounding error: the rest of the matrix is represented.
        if missing[pivot] <= 10 * np.finfo(np.float64).eps * total / len(x):
            break
        if rank == factor.shape[1]:
            grown = np.empty((len(x), min(2 * rank, limit)), order="F")
            grown[:, :rank] = factor
            factor = grown
        column = kernel(x, x[pivot : pivot + 1])[:, 0] - factor[:, :rank] @ factor[pivot, :rank]
        factor[:, rank] = column / np.sqrt(missing[pivot])
        missing = np.maximum(missing - factor[:, rank] ** 2, 0.0)
        missing[pivot] = 0.0
        pivots.append(pivot)
    return Cholesky(factor[:, : len(pivots)], tuple(pivots), float(missing.sum()))


@dataclass(frozen=True, eq=False)
class Nystroem:
    """Features with <phi(x), phi(z)> = k(x, Z) k(Z, Z)^-1 k(Z, z) for landmarks Z; build it with `nystroem`."""

    kernel: Kernel
    landmarks: Array
    """[d, p]."""
    triangle: Array
    """The Cholesky factor of k(Z, Z), lower, [d, d]."""

    def __call__(self, x: Array) -> Array:
        return np.asarray(
            solve_triangular(self.triangle, self.kernel(self.landmarks, x), lower=True, check_finite=False).T,
            dtype=np.float64,
        )


def nystroem(
    kernel: Kernel, x: Array, features: int, rng: np.random.Generator, candidates: int | None = None
) -> Nystroem:
    """At most `features` landmarks by pivoted Cholesky among `candidates` random points (default: 20 a feature)."""
    if features < 1:
        raise InputError(f"Nystrom features need at least one landmark, not {features}.")
    x = as_points(x)
    wanted = min(len(x), 20 * features if candidates is None else max(candidates, features))
    pool = x[np.sort(rng.choice(len(x), wanted, replace=False))]
    chosen = pivoted_cholesky(kernel, pool, 1e-12, features)
    pivots = list(chosen.pivots)
    # The factor's pivot rows are lower triangular: they are the Cholesky factor of k(Z, Z).
    return Nystroem(kernel, pool[pivots], np.tril(chosen.factor[pivots]))

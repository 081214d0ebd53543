"""When to stop: the empirical Rademacher complexity (22) and the rule (23) of Su et al., and the noise level it needs.

The rule balances the worst bias over ||f_0 - f*||_H <= norm against the variance. It knows nothing else about f*: for
a truth much smoother than the kernel's worst, or of another norm than stated, the best round is off by large factors.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.optimize import brentq, minimize_scalar

from parley.core.errors import InputError
from parley.theory.arguments import LARGEST, SMALLEST, check_sizes, check_whole
from parley.theory.kernel.blocks import rounding
from parley.theory.kernel.federation import KernelFederation
from parley.theory.kernel.methods import KernelStep
from parley.theory.kernel.points import as_numbers, check_finite
from parley.theory.theta import Array


def rademacher(eigenvalues: npt.ArrayLike, N: int, epsilon: npt.ArrayLike) -> Array:
    """R(epsilon) of (22), elementwise, from the eigenvalues of K (those left out count as zero)."""
    values, radius = as_spectrum(eigenvalues, N), np.asarray(epsilon, dtype=np.float64)
    if not ((radius >= 0) & (radius <= LARGEST)).all():
        raise InputError(f"a radius epsilon must lie between 0 and {LARGEST:g}.")
    return np.asarray(np.sqrt(np.minimum(values, radius[..., None] ** 2).sum(axis=-1) / N), dtype=np.float64)


def as_spectrum(eigenvalues: npt.ArrayLike, N: int) -> Array:
    """Eigenvalues of K, those that are negative by rounding as zero; refuses others."""
    values = as_numbers(eigenvalues, "eigenvalues")
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise InputError(f"give a list of finite eigenvalues of K, not one of shape {values.shape}.")
    check_whole("the number of samples N", N)
    if values.min() < -10 * rounding(values):
        raise InputError(f"K is positive semidefinite and cannot have the eigenvalue {values.min():.3g}.")
    return np.maximum(values, 0.0)


@dataclass(frozen=True)
class Stop:
    """The answer of the stopping rule."""

    T: int
    """The last round to run; 0 means that f_0 is already as good as the rule can promise."""
    time: float
    """eta * s * t at which bias and variance balance: it depends on the data and sigma only, not on the method."""
    sigma: float
    norm: float
    """The assumed ||f_0 - f*||_H; the rule of the paper takes 1."""

    @property
    def error(self) -> float:
        """1 / (eta s T), the squared error's order at T."""
        return 1 / self.time


def stopping_round(eigenvalues: npt.ArrayLike, N: int, method: KernelStep, sigma: float, norm: float = 1.0) -> Stop:
    """T = max { t : R(1/sqrt(eta t s)) <= norm / (sqrt(2e) sigma eta t s) }, eq. (23) for norm = 1."""
    values = as_spectrum(eigenvalues, N)
    if not values.any():
        raise InputError("the stopping rule needs a positive eigenvalue of K; a kernel that is zero learns nothing.")
    if not SMALLEST <= sigma <= LARGEST:
        raise InputError(
            f"the noise level sigma must be positive, from {SMALLEST:g} to {LARGEST:g}, not {sigma:g}; without noise "
            "there is no need to stop."
        )
    if not SMALLEST <= norm <= LARGEST:
        raise InputError(
            f"norm, the distance ||f_0 - f*||_H, must be positive, from {SMALLEST:g} to {LARGEST:g}, not {norm:g}."
        )
    goal = norm / (np.sqrt(2 * np.e) * sigma)

    def excess(log_time: float) -> float:
        time = np.exp(log_time)
        # time * R(1/sqrt(time)) grows with time, so the rounds that meet (23) are 1, ..., T.
        return float(np.log(time * rademacher(values, N, 1 / np.sqrt(time)) / goal))

    low, high = -1.0, 1.0
    while excess(low) > 0:
        low *= 2
    while excess(high) < 0:
        high *= 2
    time = float(np.exp(brentq(excess, low, high, xtol=1e-14, rtol=1e-14)))
    # The root is exact to rounding: a round that meets the rule with equality counts.
    return Stop(int(np.floor(time / (method.eta * method.s) * (1 + 1e-12))), time, float(sigma), float(norm))


def estimate_sigma(federation: KernelFederation, y: npt.ArrayLike) -> float:
    """The noise level from the data alone: kernel ridge regression, its penalty by generalised cross-validation.

    sigma^2 = ||y - f||^2 / (N - degrees of freedom). One N^3 eigendecomposition of K; refuses data that the kernel
    fits without leaving degrees of freedom.
    """
    values, vectors = eigh(federation.gram.dense, check_finite=False)
    targets = federation.samples.values(y)
    return sigma_from_coordinates(np.maximum(values, 0.0), np.asarray(vectors.T @ targets), 0.0, len(targets))


def sigma_from_coordinates(eigenvalues: Array, coordinates: Array, outside: float, N: int) -> float:
    """The same from the coordinates of y in K's eigenvectors; `outside` is the squared norm of the rest of y."""
    eigenvalues, coordinates = as_spectrum(eigenvalues, N), as_numbers(coordinates, "coordinates")
    if coordinates.shape != eigenvalues.shape or len(eigenvalues) > N:
        raise InputError(
            f"give one coordinate per eigenvalue and at most N = {N}, not {coordinates.shape} for {eigenvalues.shape}."
        )
    check_finite(coordinates, "coordinates")
    check_sizes(outside=outside)
    left_over = N - len(eigenvalues)

    def residual(log_penalty: float) -> tuple[float, float]:
        shrunk = 1 / (1 + eigenvalues / np.exp(log_penalty))
        return float(((shrunk * coordinates) ** 2).sum()) + outside, float(shrunk.sum()) + left_over

    def criterion(log_penalty: float) -> float:
        squares, freedom = residual(log_penalty)
        return N * squares / freedom**2

    top = np.log(max(float(eigenvalues.max()), np.finfo(np.float64).tiny))
    grid = np.linspace(top - 35, top + 5, 161)
    scores = np.array([criterion(value) for value in grid])
    best = int(np.argmin(scores))
    solution = minimize_scalar(criterion, bounds=(grid[max(best - 1, 0)], grid[min(best + 1, 160)]), method="bounded")
    squares, freedom = residual(float(solution.x))
    # A flat criterion (K a multiple of I) says nothing; without degrees of freedom nothing is left to measure.
    if freedom < 0.02 * N or scores.max() - scores.min() <= 1e-6 * scores.max():
        raise InputError("the kernel interpolates the data, so their noise cannot be estimated; give sigma.")
    return float(np.sqrt(squares / freedom))

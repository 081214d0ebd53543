"""Who gains by joining: the federation gain of clients with known truths (Su et al., Definition 15, Theorems 16-17).

The gain of client j is the error of its best local model over the error of the federated one, both as distances to
theta_j*: above 1 it should join. Definition 15 squares the distances (`squared`); Figures 4 and 5 do not (`ratio`).

    gains = expected_gains(designs, truths, sigma=0.5, method=GradientSteps(eta=0.1, s=5))
    gains[3].squared, gains[3].ratio

For data without known truths see `parley.theory.gain.estimate`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError
from parley.theory.arguments import check_positive, check_sizes, check_whole
from parley.theory.kernel.decay import as_rounds
from parley.theory.kernel.feature_space import FeatureSpace
from parley.theory.kernel.features import Identity
from parley.theory.kernel.methods import KernelStep
from parley.theory.kernel.points import as_points, check_finite
from parley.theory.theta import Array


@dataclass(frozen=True)
class Gain:
    """One client's squared errors and their ratio."""

    local: float
    """||theta_hat_j - theta_j*||^2 of the local model, in expectation or of one draw."""
    federated: float
    """||theta_t - theta_j*||^2 of the federated model."""

    @property
    def squared(self) -> float:
        """FG_j of Definition 15."""
        return self.local / self.federated if self.federated > 0 else float("inf")

    @property
    def ratio(self) -> float:
        """The ratio of the distances themselves, as plotted in the paper: the root of FG_j."""
        return float(np.sqrt(self.squared))


def minimum_norm(design: npt.ArrayLike, targets: npt.ArrayLike) -> Array:
    """The local estimator (X'X)^+ X'y, [d] or [d, k]: minimax optimal in rate, also for n < d."""
    X, y = as_points(design), np.asarray(targets, dtype=np.float64)
    if y.shape[:1] != X.shape[:1] or y.ndim > 2:
        raise InputError(f"give one target per sample; got {len(X)} samples and targets of shape {y.shape}.")
    check_finite(y, "the targets")
    return np.asarray(np.linalg.lstsq(X, y, rcond=None)[0], dtype=np.float64)


def local_risk(design: npt.ArrayLike, truth: npt.ArrayLike, sigma: float) -> float:
    """E ||theta_hat - theta*||^2 of `minimum_norm` for independent noise of variance sigma^2."""
    (X,), (theta,) = _checked([design], [truth])
    check_sizes(sigma=sigma)
    _, singular, right = np.linalg.svd(X, full_matrices=False)
    kept = singular > max(X.shape) * np.finfo(np.float64).eps * singular.max()
    missed = theta - right[kept].T @ (right[kept] @ theta)
    return float(missed @ missed + sigma**2 * (singular[kept] ** -2.0).sum())


def expected_gains(
    designs: Sequence[npt.ArrayLike],
    truths: Sequence[npt.ArrayLike],
    sigma: float,
    method: KernelStep,
    rounds: Sequence[int] | None = None,
) -> list[Gain]:
    """Every client's gain in expectation over the noise, for designs X_j [n_j, d] and truths theta_j* [d].

    The federated error is the least over `rounds` (default: 1 to 10^7 on a fine grid, and the limit), as the infimum
    in (33) allows; each client may stop where it likes. f_0 = 0.
    """
    points, thetas = _checked(designs, truths)
    space = FeatureSpace.of(Identity(), points, [X @ theta for X, theta in zip(points, thetas, strict=True)], method)
    if not (rounds is None or len(rounds)):
        raise InputError("give at least one round, or none to look at all of them.")
    grid = (np.unique(np.geomspace(1, 1e7, 141).round()) if rounds is None else as_rounds(rounds)).astype(int)
    means = [space.theta(int(t)) for t in grid]
    variances = list(space.variance(grid, sigma))
    if rounds is None:
        means.append(space.limit())
        variances.append(space.limit_variance(sigma))
    path, spread = np.stack(means), np.array(variances)
    return [
        Gain(local_risk(X, theta, sigma), float((((path - theta) ** 2).sum(axis=1) + spread).min()))
        for X, theta in zip(points, thetas, strict=True)
    ]


def drawn_gains(
    designs: Sequence[npt.ArrayLike],
    truths: Sequence[npt.ArrayLike],
    targets: Sequence[npt.ArrayLike],
    method: KernelStep,
    rounds: int | None = None,
) -> list[Gain]:
    """Every client's gain in one draw of the noise, at round `rounds` (default: the limit); the paper plots these."""
    points, thetas = _checked(designs, truths)
    values = [np.asarray(y, dtype=np.float64) for y in targets]
    space = FeatureSpace.of(Identity(), points, values, method)
    theta = space.limit() if rounds is None else space.theta(rounds)
    return [
        Gain(float(((minimum_norm(X, y) - star) ** 2).sum()), float(((theta - star) ** 2).sum()))
        for X, y, star in zip(points, values, thetas, strict=True)
    ]


def theorem16(
    n: int, d: int, N: int, sigma: float, radius: float, heterogeneity: float, constant: float = 1.0
) -> float:
    """(34), a lower bound on FG_j up to a constant; radius B >= ||theta_j*||, Gamma = max_ij ||theta_i* - theta_j*||"""
    _check_counts(n=n, d=d, N=N)
    check_sizes(sigma=sigma, radius=radius, heterogeneity=heterogeneity, constant=constant)
    local = min(sigma**2 * d / n, radius**2) + max(1 - n / d, 0.0) * radius**2
    federated = sigma**2 * d / N + heterogeneity**2
    if not federated > 0:
        raise InputError("without noise and heterogeneity the federated model is exact, and a gain is no number.")
    return constant * local / federated


def theorem16_threshold(n: int, d: int, sigma: float, radius: float) -> float:
    """The Gamma up to which joining pays, in order: B sqrt(1 - n/d) if n < d, else min(sigma sqrt(d/n), B)."""
    _check_counts(n=n, d=d)
    check_sizes(sigma=sigma, radius=radius)
    return float(radius * np.sqrt(1 - n / d)) if n < d else float(min(sigma * np.sqrt(d / n), radius))


def theorem17(
    n: int, r: int, d: int, N: int, sigma: float, radius: float, kappa: float = 1.0, constant: float = 1.0
) -> float:
    """(35): a lower bound on FG_j where client j sees r of d dimensions, all truths agree and N >= C nu d log d."""
    _check_counts(n=n, r=r, d=d, N=N)
    check_sizes(radius=radius, constant=constant)
    check_positive(sigma=sigma, kappa=kappa)
    if r > d:
        raise InputError(f"a client sees at most all {d} dimensions, not r = {r}.")
    local = min(sigma**2 * d / n, radius**2) + (1 - r / d) * radius**2
    return constant * local / (kappa * sigma**2 * d / N)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        check_whole(name, count)


def _checked(designs: Sequence[npt.ArrayLike], truths: Sequence[npt.ArrayLike]) -> tuple[list[Array], list[Array]]:
    if len(designs) != len(truths):
        raise InputError(f"give one truth per client; got {len(designs)} designs and {len(truths)} truths.")
    points = [as_points(X, f"client {number}'s design") for number, X in enumerate(designs)]
    thetas = [np.asarray(theta, dtype=np.float64) for theta in truths]
    for number, (X, theta) in enumerate(zip(points, thetas, strict=True)):
        if theta.shape != X.shape[1:] or not np.isfinite(theta).all():
            raise InputError(
                f"client {number}'s truth must be {X.shape[1]} finite numbers, not of shape {theta.shape}."
            )
    return points, thetas

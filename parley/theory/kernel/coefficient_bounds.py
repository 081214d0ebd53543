"""Bounds on ||theta_t - theta||_2 for models with d coefficients (Su et al., Theorem 12, Corollaries 13-14)."""

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError
from parley.theory.arguments import check_positive, check_sizes, check_whole
from parley.theory.kernel.decay import as_rounds, kept
from parley.theory.kernel.feature_space import FeatureSpace
from parley.theory.kernel.methods import KernelStep
from parley.theory.theta import Array


def theorem12(space: FeatureSpace, t: npt.ArrayLike, start: float, sigma: float) -> Array:
    """(25): E ||theta_t - theta_bar||^2, with start = ||theta_0 - theta_bar||; infinite if rho_N = 0."""
    check_sizes(start=start, sigma=sigma)
    if not space.rho:
        return np.full(np.shape(t), np.inf)
    method, kappa = space.method, space.kappa
    shrink = kept(method.s * method.eta * space.rho / kappa, 2 * as_rounds(t))
    return np.asarray(
        shrink * start**2 + sigma**2 * kappa * len(space.update) / (space.N * space.rho), dtype=np.float64
    )


def theorem12_distance(space: FeatureSpace, delta: float) -> float:
    """(26): ||theta_bar - theta_j*|| for delta = ||Delta_{f_j*}||_2; infinite if rho_N = 0."""
    check_sizes(delta=delta)
    return delta * float(np.sqrt(space.kappa / (space.N * space.rho))) if space.rho else float("inf")


def corollary13(
    method: KernelStep, gamma: float, t: npt.ArrayLike, start: float, sigma: float, d: int, N: int, alpha: float
) -> Array:
    """(28) with its missing alpha: Theorem 12 where rho_N >= alpha / 2; second moments between alpha I and beta I.

    Corollary 14's (30) is the same formula, with alpha the least eigenvalue of F_i' F_i / n_i. It holds with high
    probability once N >= c_1 d (13) or N >= C nu d log d (14); the constants are unknown, `FeatureSpace.rho` is not.
    """
    kappa = method.kappa(gamma)
    check_sizes(gamma=gamma, start=start, sigma=sigma, d=d)
    _check_alpha(alpha, N)
    share = method.s * method.eta * alpha / (2 * kappa)
    if not share <= 1:
        raise InputError(f"alpha = {alpha:g} is above what second moments can be at this step: s eta alpha <= 2 kappa.")
    shrink = kept(share, 2 * as_rounds(t))
    return np.asarray(shrink * start**2 + sigma**2 * 2 * kappa * d / (N * alpha), dtype=np.float64)


corollary14 = corollary13


def corollary13_distance(kappa: float, heterogeneity: float, constant: float = 1.0) -> float:
    """(29): ||theta_bar - theta_j*|| <= c_2 Gamma sqrt(kappa); Gamma = max_ij ||theta_i* - theta_j*||, c_2 unknown."""
    check_sizes(kappa=kappa, heterogeneity=heterogeneity, constant=constant)
    return constant * heterogeneity * float(np.sqrt(kappa))


def corollary14_distance(
    kappa: float, heterogeneity: float, alpha: float, beta: float, nu: float, clients: int, d: int, N: int
) -> float:
    """(31): ||theta_bar - theta_j*|| <= Gamma sqrt(2 kappa beta nu M d / (alpha N)), nu = max_i n_i / r_i."""
    check_sizes(kappa=kappa, heterogeneity=heterogeneity, beta=beta, nu=nu, clients=clients, d=d)
    _check_alpha(alpha, N)
    return heterogeneity * float(np.sqrt(2 * kappa * beta * nu * clients * d / (alpha * N)))


def coupon_samples(nu: float, d: int) -> float:
    """nu d log d: the N at which Corollary 14 starts to hold, up to its constant C (coupon collecting)."""
    check_whole("the dimension d", d)
    check_sizes(nu=nu)
    return nu * d * float(np.log(d))


def _check_alpha(alpha: float, N: int) -> None:
    check_positive(alpha=alpha)
    check_whole("N", N)

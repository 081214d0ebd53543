"""Worst-case condition numbers of the surrogate from L and mu alone (Charles and Konečný, eqs. 10-13, Lemmas 3, 4, 6).

Everything is a logarithm, so that no K or gamma over- or underflows. The two families share one identity: the bound
kappa on the surrogate's condition number and the largest condition number of any Q_i multiply to kappa_0 = L / mu.
Arguments gamma, alpha and K broadcast; K may be real.
"""

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError
from parley.theory.region import check_counts, check_curvature, check_last_step, check_step
from parley.theory.theta import Array, log_mean_all, log_mean_last

__all__ = [
    "FAMILIES",
    "check_family",
    "curvature_bound",
    "kappa_bound",
    "log_distortion_spread",
    "log_kappa_bound",
    "log_phi",
    "log_psi",
]

FAMILIES = ("fedavg", "maml")
"""Theta_{1:K} (FedAvg, Reptile; FedProx with alpha > 0) and Theta_K (FOMAML; MAML with Theta_{2K+1})."""


def log_phi(lam: npt.ArrayLike, alpha: npt.ArrayLike, gamma: npt.ArrayLike, K: npt.ArrayLike) -> Array:
    """log of phi in eq. (10): the eigenvalue of Q_i A_i for Theta_{1:K} where A_i has `lam`."""
    s = _step(lam, alpha, gamma, K)
    return np.asarray(np.log(lam) + np.log(np.asarray(K, dtype=np.float64)) + log_mean_all(s, K), dtype=np.float64)


def log_psi(lam: npt.ArrayLike, alpha: npt.ArrayLike, gamma: npt.ArrayLike, K: npt.ArrayLike) -> Array:
    """log of psi in eq. (12): the eigenvalue of Q_i A_i for Theta_K where A_i has `lam`."""
    s = _step(lam, alpha, gamma, K)
    return np.asarray(np.log(lam) + log_mean_last(s, K), dtype=np.float64)


def _step(lam: npt.ArrayLike, alpha: npt.ArrayLike, gamma: npt.ArrayLike, K: npt.ArrayLike) -> Array:
    """gamma (lam + alpha), elementwise, where a client's step is stable along eigenvalue lam."""
    values = np.asarray(lam, dtype=np.float64)
    if not (np.isfinite(values) & (values > 0)).all():
        raise InputError("an eigenvalue of a client's Hessian must be positive and finite.")
    check_counts(K)
    check_step(gamma, alpha, 0.0)
    s = np.asarray(gamma) * (values + np.asarray(alpha))
    if not (s < 1).all():
        raise InputError(
            f"the client step must satisfy gamma (lam + alpha) < 1, but it is {s.max():g}; take a smaller one."
        )
    return np.asarray(s, dtype=np.float64)


def log_distortion_spread(
    L: float, mu: float, gamma: npt.ArrayLike, K: npt.ArrayLike, alpha: npt.ArrayLike = 0.0, family: str = "fedavg"
) -> Array:
    """log(b / a) for the largest b and smallest a that any Q_i's eigenvalues can take; 0 means no distortion."""
    check_family(L, mu, gamma, K, alpha, family)
    log_mean = log_mean_all if family == "fedavg" else log_mean_last
    steps, strength = np.asarray(gamma, dtype=np.float64), np.asarray(alpha, dtype=np.float64)
    spread = log_mean(steps * (mu + strength), K) - log_mean(steps * (L + strength), K)
    return np.asarray(np.clip(spread, 0.0, np.log(L / mu)), dtype=np.float64)


def log_kappa_bound(
    L: float, mu: float, gamma: npt.ArrayLike, K: npt.ArrayLike, alpha: npt.ArrayLike = 0.0, family: str = "fedavg"
) -> Array:
    """log of the bound (11) ("fedavg", gamma < 1/(L + alpha)) or (13) ("maml", gamma < 1/(K L + alpha))."""
    spread = log_distortion_spread(L, mu, gamma, K, alpha, family)
    return np.asarray(np.log(L / mu) - spread, dtype=np.float64)


def kappa_bound(
    L: float, mu: float, gamma: npt.ArrayLike, K: npt.ArrayLike, alpha: npt.ArrayLike = 0.0, family: str = "fedavg"
) -> Array:
    """The bound (11) or (13) itself, from L / mu (no distortion) down to 1."""
    return np.asarray(np.exp(log_kappa_bound(L, mu, gamma, K, alpha, family)), dtype=np.float64)


def curvature_bound(L: float, mu: float, gamma: float, K: float, alpha: float, family: str) -> tuple[float, float]:
    """(smoothness, strong convexity) of every surrogate with these constants: phi(L), phi(mu) or psi(L), psi(mu)."""
    check_family(L, mu, gamma, K, alpha, family)
    log_value = log_phi if family == "fedavg" else log_psi
    low, high = np.exp(log_value(np.array([mu, L]), alpha, gamma, K))
    return float(max(low, high)), float(low)  # equal but for rounding once kappa = 1


def check_family(
    L: float, mu: float, gamma: npt.ArrayLike, K: npt.ArrayLike, alpha: npt.ArrayLike, family: str
) -> None:
    """Refuse anything outside the region where (11) or (13) holds."""
    check_curvature(L, mu)
    if family not in FAMILIES:
        raise InputError(f"unknown family '{family}': choose one of {', '.join(FAMILIES)}.")
    check_counts(K)
    if family == "fedavg":
        check_step(gamma, alpha, L)
    else:
        check_last_step(gamma, alpha, L, K)

"""How far a method's fixed point x~ can be from the empirical minimiser x* (replaces Charles and Konečný, Lemma 5).

Let a I <= Q_i <= b I, H = sum_i p_i Q_i A_i, Abar = sum_i p_i A_i and S^2 = sum_i p_i ||c_i - x*||^2_{A_i}. Then

    ||x~ - x*||_H <= (sqrt(b) - sqrt(a)) S,    hence    ||x~ - x*||_Abar <= (sqrt(b/a) - 1) S
                                               and      ||x~ - x*|| <= (sqrt(b) - sqrt(a)) S / sqrt(lambda_min(H)).

Proof: H (x~ - x*) = sum_i p_i (Q_i - sqrt(ab) I) A_i (c_i - x*) because sum_i p_i A_i (c_i - x*) = 0. Multiply by
x~ - x* from the left and apply Cauchy-Schwarz weighted by Q_i: since Q_i and A_i commute and |q - sqrt(ab)| / sqrt(q)
is at most sqrt(b) - sqrt(a) on [a, b], the right-hand side is at most ||x~ - x*||_H (sqrt(b) - sqrt(a)) S.

With only L, mu and a ball of radius C around all c_i: S <= sqrt(L) C, and for Theta_{1:K} and Theta_K (Lemmas 3, 4)
lambda_min(H) >= mu b and a/b >= kappa/kappa_0, so ||x~ - x*|| <= (sqrt(kappa_0) - sqrt(kappa)) C.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError
from parley.theory.quadratics import Quadratics
from parley.theory.region import check_curvature
from parley.theory.theta import Array, ThetaLike, as_theta

__all__ = ["Distances", "distances", "drift_bound", "residual_spread"]


@dataclass(frozen=True)
class Distances:
    """The distance between the two minimisers, and what bounds it, or is claimed to."""

    actual: float
    """||x~ - x*||."""
    corrected: float
    """(sqrt(b) - sqrt(a)) S / sqrt(lambda_min(H)), at least `actual`."""
    actual_energy: float
    """||x~ - x*||_Abar."""
    corrected_energy: float
    """(sqrt(b/a) - 1) S, at least `actual_energy`."""
    one_dimension: float | None
    """Lemma 12: 2 C (sqrt(b) - sqrt(a)) / (sqrt(b) + sqrt(a)), at least `actual`; None for d > 1: no bound there."""
    printed_in_paper: float
    """The paper's Lemma 5: 8 C (sqrt(b) - sqrt(a)) / (sqrt(b) + sqrt(a)). FALSE for d > 1, for comparison only."""


def distances(clients: Quadratics, gamma: float, theta: ThetaLike, alpha: float = 0.0) -> Distances:
    """Distance and bounds for given clients; C is taken around the origin, as in the paper."""
    drift = clients.drift(gamma, theta, alpha)
    logs = clients.log_distortion(gamma, theta, alpha) - np.log(as_theta(theta).weight)
    # All forms depend on ratios alone: scale so that b = 1.
    half_log_ratio = float(logs.max() - logs.min()) / 2
    eigenvalues = np.exp(logs - logs.max())
    hessian = np.einsum("i,ijk->jk", clients.p, clients.compose(eigenvalues * clients.eigenvalues))
    spread = residual_spread(clients)
    printed = 8 * clients.C * np.tanh(half_log_ratio / 2)
    return Distances(
        actual=float(np.linalg.norm(drift)),
        corrected=float(-np.expm1(-half_log_ratio) * spread / np.sqrt(np.linalg.eigvalsh(hessian)[0])),
        actual_energy=float(np.sqrt(drift @ clients.mean_hessian @ drift)),
        corrected_energy=float(np.expm1(min(half_log_ratio, 700.0)) * spread),
        one_dimension=float(printed / 4) if clients.c.shape[1] == 1 else None,
        printed_in_paper=float(printed),
    )


def residual_spread(clients: Quadratics) -> float:
    """S = sqrt(sum_i p_i ||c_i - x*||^2_{A_i}): how much the clients disagree, as the corrected bounds measure it."""
    return float(np.sqrt(2 * clients.empirical_loss(clients.empirical_minimiser)))


def drift_bound(log_spread: npt.ArrayLike, kappa0: float, C: float) -> Array:
    """(sqrt(kappa_0) - sqrt(kappa)) C from log_spread = log(kappa_0 / kappa), elementwise: all L, mu and C can say."""
    if not (np.isfinite(C) and C >= 0):
        raise InputError(f"the clients' optima must lie in a ball of finite radius C >= 0, but C = {C:g}.")
    check_curvature(kappa0, 1.0)
    if not (np.asarray(log_spread) >= 0).all():
        raise InputError("a spread log(kappa_0 / kappa) must be at least 0: no kappa is above kappa_0.")
    return np.asarray(-np.expm1(-np.asarray(log_spread) / 2) * np.sqrt(kappa0) * C, dtype=np.float64)

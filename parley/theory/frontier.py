"""Pareto frontiers of convergence against accuracy, in closed form too (Charles and Konečný, Sections 5 and D).

A method's point is (rho, Delta): the server's rate on the surrogate (Table 2) and the suboptimality of eq. (17),
(sqrt(kappa_0) - sqrt(kappa)) / (sqrt(kappa_0) + sqrt(kappa)) = tanh(log(kappa_0 / kappa) / 4). Eliminating kappa gives

    log(kappa_0) = log(kappa) + 4 artanh(Delta),   kappa being the condition number at which the server attains rho,

so a frontier depends on kappa_0 and the server optimizer alone; gamma, K and alpha only choose the point on it.
Delta is the paper's axis. As a bound on a distance it is false beyond one dimension: see `parley.theory.distance`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError
from parley.theory.arguments import check_lengths, check_whole
from parley.theory.condition import log_distortion_spread, log_psi
from parley.theory.region import check_counts, check_curvature, check_step
from parley.theory.servers import check_server, log_kappa_of, rate
from parley.theory.theta import Array

__all__ = [
    "Frontier",
    "cusp_delta",
    "cusp_steps",
    "delta_of_rho",
    "delta_of_spread",
    "exact_frontier",
    "family_frontier",
    "rho_of_delta",
    "simulated_maml_frontier",
]


@dataclass(frozen=True, eq=False)
class Frontier:
    """Points (rho, delta) of one family, with the client settings that give them; all arrays have one shape, [n]."""

    kappa0: float
    server: str
    gamma: Array
    K: Array
    alpha: Array
    log_kappa: Array
    rho: Array
    delta: Array


def family_frontier(
    L: float,
    mu: float,
    gamma: npt.ArrayLike,
    K: npt.ArrayLike,
    alpha: npt.ArrayLike = 0.0,
    server: str = "none",
    family: str = "fedavg",
) -> Frontier:
    """Worst-case points for arrays (or numbers) gamma, K and alpha.

    FedAvg: alpha = 0. FedProx: alpha > 0. MAML-style: family="maml", which needs gamma < 1/(K L + alpha).
    """
    check_lengths(gamma=gamma, K=K, alpha=alpha)
    spread = log_distortion_spread(L, mu, gamma, K, alpha, family)
    return _assemble(L / mu, server, (gamma, K, alpha), np.log(L / mu) - spread, spread)


def simulated_maml_frontier(
    spectrum: npt.ArrayLike,
    gamma: npt.ArrayLike,
    K: npt.ArrayLike,
    alpha: npt.ArrayLike = 0.0,
    server: str = "none",
) -> Frontier:
    """Theta_K on one Hessian with these eigenvalues, any gamma < 1/(L + alpha): rho by cond(Q A), Delta by cond(Q).

    Beyond gamma = 1/(K L + alpha) the points leave the FedAvg curve, with a cusp at `cusp_delta`.
    """
    values = np.sort(np.asarray(spectrum, dtype=np.float64).ravel())
    if not values.size or not np.isfinite(values).all():
        raise InputError("a spectrum must be a non-empty array of finite eigenvalues.")
    L, mu = float(values[-1]), float(values[0])
    check_curvature(L, mu)
    check_lengths(gamma=gamma, K=K, alpha=alpha)
    check_step(gamma, alpha, L)
    steps, counts, strengths = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(value, dtype=np.float64)) for value in (gamma, K, alpha))
    )
    check_counts(counts)
    logs = log_psi(values, strengths[..., None], steps[..., None], counts[..., None])
    spread = (counts - 1) * (np.log1p(-steps * (mu + strengths)) - np.log1p(-steps * (L + strengths)))
    log_kappa = logs.max(axis=-1) - logs.min(axis=-1)
    return _assemble(L / mu, server, (gamma, K, alpha), log_kappa, np.maximum(spread, 0.0))


def exact_frontier(kappa0: float, server: str = "none", points: int = 1000) -> tuple[Array, Array]:
    """(rho, Delta) of the whole frontier, [points] each: from mini-batch SGD (Delta = 0) to one-shot (rho = 0)."""
    check_curvature(kappa0, 1.0)
    check_whole("the number of points of a frontier", points, 2)
    spread = np.linspace(0.0, np.log(kappa0), points)
    return rate(np.log(kappa0) - spread, server), delta_of_spread(spread)


def delta_of_spread(log_spread: npt.ArrayLike) -> Array:
    """Delta of eq. (17) from log(kappa_0 / kappa), or of Lemma 5 from log(b / a)."""
    spread = np.asarray(log_spread, dtype=np.float64)
    if not (spread >= 0).all():
        raise InputError("a spread log(kappa_0 / kappa) must be at least 0: no kappa is above kappa_0.")
    return np.asarray(np.tanh(spread / 4), dtype=np.float64)


def rho_of_delta(delta: npt.ArrayLike, kappa0: float, server: str = "none") -> Array:
    """The frontier in closed form: the rate at suboptimality Delta, from 0 to (sqrt(kappa0) - 1)/(sqrt(kappa0) + 1)."""
    check_curvature(kappa0, 1.0)
    values, highest = np.asarray(delta, dtype=np.float64), float(delta_of_spread(np.log(kappa0)))
    if not ((values >= 0) & (values <= highest * (1 + 1e-12))).all():
        raise InputError(
            f"on the frontier of kappa0 = {kappa0:g} suboptimality is from 0 to {highest:.6g}; stay inside."
        )
    return rate(np.maximum(np.log(kappa0) - 4 * np.arctanh(np.minimum(values, highest)), 0.0), server)


def delta_of_rho(rho: npt.ArrayLike, kappa0: float, server: str = "none") -> Array:
    """The inverse of `rho_of_delta`: the suboptimality at rate rho, 0 <= rho <= the rate of kappa0."""
    check_curvature(kappa0, 1.0)
    values, highest = np.asarray(rho, dtype=np.float64), float(rate(np.log(kappa0), server))
    if not ((values >= 0) & (values <= highest + 1e-15)).all():
        raise InputError(f"on the frontier of kappa0 = {kappa0:g} the rate is from 0 to {highest:.6g}; stay inside.")
    below_one = np.minimum(values, np.nextafter(1.0, 0.0))  # the highest rate rounds to 1 for large kappa0
    spread = np.where(values < highest, np.log(kappa0) - log_kappa_of(below_one, server), 0.0)
    return delta_of_spread(np.maximum(spread, 0.0))


def cusp_delta(kappa0: float) -> float:
    """The simulated MAML frontier's cusp, where psi(L) = psi(mu), so cond(Q) = kappa_0; also FedAvg's one-shot end."""
    check_curvature(kappa0, 1.0)
    return float(delta_of_spread(np.log(kappa0)))


def cusp_steps(L: float, mu: float, gamma: float, alpha: float = 0.0) -> float:
    """The (real) K at which Theta_K reaches the cusp for this gamma > 0."""
    check_curvature(L, mu)
    check_step(gamma, alpha, L)
    if not (gamma > 0 and mu < L):
        raise InputError("a cusp needs gamma > 0 and mu < L.")
    return float(1 + np.log(L / mu) / (np.log1p(-gamma * (mu + alpha)) - np.log1p(-gamma * (L + alpha))))


def _assemble(
    kappa0: float, server: str, settings: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike], logs: Array, spread: Array
) -> Frontier:
    check_server(server)
    gamma, K, alpha, log_kappa, spreads = (
        np.array(value, dtype=np.float64)
        for value in np.broadcast_arrays(*map(np.atleast_1d, (*settings, logs, spread)))
    )
    return Frontier(kappa0, server, gamma, K, alpha, log_kappa, rate(log_kappa, server), delta_of_spread(spreads))

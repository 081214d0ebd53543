"""Which gamma and K for T rounds: the setting of least corrected bound (for Charles and Konečný, Corollary 1).

Knowing only L, mu, the radius C of a ball around all clients' optima and D >= ||x_0 - x*||, round T obeys

    ||x_T - x*|| <= F rho^T (D + delta) + delta,      delta = (sqrt(kappa_0) - sqrt(kappa)) C,

with `servers.transient` for F and `distance.drift_bound` for delta. It depends on kappa alone, so the best kappa is a
one-dimensional search, and any (gamma, K) that gives it is as good. alpha > 0 only shortens the reachable range.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, minimize_scalar

from parley.core.errors import InputError
from parley.theory.arguments import check_sizes, check_whole
from parley.theory.condition import curvature_bound, log_distortion_spread
from parley.theory.distance import drift_bound
from parley.theory.region import check_curvature, check_step
from parley.theory.servers import ServerSetting, check_server, rate, transient, tune
from parley.theory.theta import Array

__all__ = [
    "LEAST_STEP",
    "MOST_STEPS",
    "Advice",
    "Choice",
    "best_setting",
    "bound_terms",
    "check_request",
    "client_setting",
]

LEAST_STEP = 1e-3
"""gamma (L + alpha) is 0 or at least this: single precision loses smaller steps, and they change next to nothing."""
MOST_STEPS = 2**62
"""Local steps beyond which nobody counts: kappa_0 from 1e17 on would ask for more."""


@dataclass(frozen=True)
class Choice:
    """A complete setting of Theta_{1:K} and its server, with the two terms of the bound at the asked round."""

    gamma: float
    K: int
    alpha: float
    server: ServerSetting
    kappa: float
    """The bound (11) on the surrogate's condition number."""
    convergence: float
    """F rho^T (D + delta): what is left of the start."""
    drift: float
    """delta: how far the surrogate's minimiser may be off."""

    @property
    def bound(self) -> float:
        """The bound on ||x_T - x*||."""
        return self.convergence + self.drift


@dataclass(frozen=True)
class Advice:
    """The best choice, and the two extremes of the trade-off for comparison (these ignore limits on K and gamma)."""

    best: Choice
    minibatch_sgd: Choice
    one_shot: Choice


def best_setting(
    *,
    rounds: int,
    start_distance: float,
    C: float,
    kappa0: float | None = None,
    L: float | None = None,
    mu: float | None = None,
    server: str = "none",
    alpha: float = 0.0,
    max_steps: int | None = None,
    max_gamma: float | None = None,
) -> Advice:
    """The (gamma, K, server step and momentum) with the least bound on ||x_T - x*|| at T = `rounds`.

    Give `L` and `mu`, or `kappa0` alone; then gamma and eta come in units of 1/L. `C` is the radius of a ball around
    the clients' optima, `start_distance` is ||x_0 - x*||. gamma is 0 or at least 1e-3/(L + alpha). Among equally good
    settings the one with the fewest local steps at gamma <= 1/(2 (L + alpha)) is taken.
    """
    L, mu = _constants(kappa0, L, mu)
    check_server(server)
    check_request(rounds, start_distance, max_steps, max_gamma)
    check_step(0.0, alpha, L)

    def choice(gamma: float, K: int, strength: float) -> Choice:
        spread = float(log_distortion_spread(L, mu, gamma, K, strength))
        convergence, drift = bound_terms(spread, L / mu, rounds, start_distance, C, server)
        tuned = tune(server, *curvature_bound(L, mu, gamma, K, strength, "fedavg"))
        return Choice(gamma, K, strength, tuned, float(L / mu * np.exp(-spread)), float(convergence), float(drift))

    lowest, highest = (
        LEAST_STEP / (L + alpha),
        min((1 - 1e-12) / (L + alpha), np.inf if max_gamma is None else max_gamma),
    )
    if max_steps is not None:
        widest = float(log_distortion_spread(L, mu, highest, max_steps, alpha))
    else:
        widest = float(np.log((L + alpha) / (mu + alpha)))  # K -> infinity
    narrowest = float(log_distortion_spread(L, mu, lowest, 2, alpha))

    def total(spread: npt.ArrayLike) -> Array:
        convergence, drift = bound_terms(spread, L / mu, rounds, start_distance, C, server)
        return np.asarray(convergence + drift, dtype=np.float64)

    spread = 0.0
    if lowest <= highest and narrowest <= widest:
        spread = min((0.0, _minimise(total, narrowest, widest)), key=lambda value: float(total(value)))
    gamma, K = client_setting(spread, L, mu, alpha, highest, max_steps)
    one_shot = client_setting(float(np.log(L / mu)), L, mu, 0.0, (1 - 1e-12) / L, None)
    return Advice(choice(gamma, K, alpha), choice(0.0, 1, 0.0), choice(*one_shot, 0.0))


def bound_terms(
    log_spread: npt.ArrayLike, kappa0: float, rounds: int, start_distance: float, C: float, server: str
) -> tuple[Array, Array]:
    """(convergence, drift) terms of the corrected bound at log(kappa_0 / kappa), elementwise."""
    drift = drift_bound(log_spread, kappa0, C)
    check_sizes(start_distance=start_distance)
    rho = rate(np.maximum(np.log(kappa0) - np.asarray(log_spread), 0.0), server)
    return transient(rho, rounds, server) * rho**rounds * (start_distance + drift), drift


def client_setting(
    log_spread: float, L: float, mu: float, alpha: float, max_gamma: float, max_steps: int | None
) -> tuple[float, int]:
    """(gamma, K) that give log(kappa_0 / kappa) = log_spread with the least K at gamma <= 1/(2 (L + alpha))."""
    if log_spread <= 0 or max_gamma <= 0:
        return 0.0, 1
    usual = min(max_gamma, 0.5 / (L + alpha))
    # Beyond this K the geometric sums have converged to the last bit.
    longest = float(np.ceil(45 / max(-np.log1p(-usual * (mu + alpha)), 45 / MOST_STEPS))) + 1
    longest = longest if max_steps is None else float(min(longest, max_steps))

    def missing_steps(K: float) -> float:
        return float(log_distortion_spread(L, mu, usual, K, alpha)) - log_spread

    if missing_steps(longest) > 0:
        K = int(np.ceil(brentq(missing_steps, 1.0, longest, rtol=1e-12) * (1 - 1e-12)))
        if K == 1:  # so little drift is wanted that rounding hides it, and one step has none
            return 0.0, 1
        top = usual
    else:
        K, top = int(longest), max_gamma

    def missing_gamma(gamma: float) -> float:
        return float(log_distortion_spread(L, mu, gamma, K, alpha)) - log_spread

    if missing_gamma(top) <= 0:
        # With no limit on K the target is K -> infinity, reached to rounding at the usual gamma.
        return (usual if max_steps is None else top), K
    return float(brentq(missing_gamma, 0.0, top, xtol=float(np.finfo(np.float64).tiny), rtol=1e-14)), K


def _minimise(total: Callable[[npt.ArrayLike], Array], narrowest: float, widest: float) -> float:
    """The global minimiser of a smooth function on [narrowest, widest] whose minimum may hug either end."""
    near = (widest - narrowest) * np.geomspace(1e-14, 1.0, 1000)
    grid = np.unique(np.concatenate([narrowest + near, widest - near, np.linspace(narrowest, widest, 2001)]))
    values = total(grid)
    best, least = float(grid[np.argmin(values)]), float(values.min())
    for index in np.argsort(values)[:5]:
        low, high = grid[max(index - 1, 0)], grid[min(index + 1, len(grid) - 1)]
        if high > low:
            solution = minimize_scalar(
                lambda spread: float(total(spread)),
                bounds=(low, high),
                method="bounded",
                options={"xatol": 1e-9 * (high - low)},
            )
            if solution.fun < least:
                best, least = float(solution.x), float(solution.fun)
    return best


def _constants(kappa0: float | None, L: float | None, mu: float | None) -> tuple[float, float]:
    if kappa0 is not None and L is None and mu is None:
        if not (np.isfinite(kappa0) and kappa0 >= 1):
            raise InputError(f"the condition number must satisfy 1 <= kappa0 < infinity, but kappa0 = {kappa0:g}.")
        return 1.0, 1.0 / kappa0
    if kappa0 is None and L is not None and mu is not None:
        check_curvature(L, mu)
        return L, mu
    raise InputError("give either kappa0, or both L and mu.")


def check_request(rounds: int, start_distance: float, max_steps: int | None, max_gamma: float | None) -> None:
    """Refuse rounds, distances and limits that make no sense."""
    check_whole("the number of rounds", rounds)
    if not (np.isfinite(start_distance) and start_distance >= 0):
        raise InputError(f"the start distance ||x_0 - x*|| must be finite and at least 0, not {start_distance:g}.")
    if max_steps is not None:
        check_whole("the limit on local steps", max_steps)
    if max_gamma is not None and not max_gamma >= 0:
        raise InputError(f"the limit on the client step must be at least 0, not {max_gamma:g}.")

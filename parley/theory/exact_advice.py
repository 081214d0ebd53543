"""Which gamma, K, alpha and server for T rounds when A_i and c_i are known: the least *actual* distance at round T.

On quadratics round T is a closed form, x_T - x* = drift + V p_T(Lambda) V' (x_0 - x~), so nothing has to be bounded: a
coarse search over (gamma, K, alpha) and servers around the one tuned to each surrogate's spectrum, then a local polish
of all continuous parameters. The result is the best for this start and this T, not a robust rule.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from parley.theory.advice import check_request
from parley.theory.quadratics import Quadratics
from parley.theory.rounds import Descent, Rounds
from parley.theory.servers import ServerSetting, check_server, spectral_radius, tune
from parley.theory.theta import Array

POLISHED = 10
"""How many of the coarse candidates get a local search."""
SLACK, ROUNDING = 1e-3, 1e-14
"""Distances that differ by less, relatively or in units of the problem's size, count as equal."""
STEP_FACTORS = (1.0, 0.4, 0.6, 0.8, 1.2, 1.5)
"""Server steps tried in the coarse search, as multiples of the tuned one: few rounds can gain from being off-tune."""
MOMENTA = (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
"""Server momenta tried beside the tuned one."""


@dataclass(frozen=True)
class ExactChoice:
    """A complete setting of Theta_{1:K} and its server, with what it does to these clients at the asked round."""

    gamma: float
    K: int
    alpha: float
    server: ServerSetting
    kappa: float
    """The condition number of the surrogate."""
    distance: float
    """||x_T - x*||."""
    convergence: float
    """||x_T - x~||: what is left of the start."""
    drift: float
    """||x~ - x*||: how far the surrogate's minimiser is off."""


@dataclass(frozen=True)
class ExactAdvice:
    """The best choice, and the two extremes of the trade-off for comparison (these ignore limits on K and gamma)."""

    best: ExactChoice
    minibatch_sgd: ExactChoice
    one_shot: ExactChoice


def best_exact_setting(
    clients: Quadratics,
    start: npt.ArrayLike,
    rounds: int,
    server: str = "none",
    *,
    max_steps: int | None = None,
    max_gamma: float | None = None,
) -> ExactAdvice:
    """The setting of Theta_{1:K} with the least ||x_T - x*|| at T = `rounds` from x_0 = `start` [d], all clients in.

    Of settings within 0.1% of it (or of zero, to rounding) the one without a proximal term and with the fewest local
    steps is taken.
    """
    search = _Search(clients, start, rounds, server, max_steps, max_gamma)
    mu, L = clients.mu, clients.L
    one_shot_steps = int(np.ceil(45 / -np.log1p(-0.5 * mu / L))) + 1
    extremes = [search.tuned(0.0, 1, 0.0), search.tuned(0.5 / L, one_shot_steps, 0.0)]
    coarse = sorted(search.candidates(), key=lambda choice: choice.distance)
    rounding = ROUNDING * (search.model.start_distance + clients.C)
    starts = _different(coarse, POLISHED)
    if coarse[0].distance > rounding:
        starts = [search.polish(choice) for choice in starts]
    return ExactAdvice(_simplest(starts, rounding), *extremes)


class _Search:
    def __init__(
        self,
        clients: Quadratics,
        start: npt.ArrayLike,
        rounds: int,
        server: str,
        max_steps: int | None,
        max_gamma: float | None,
    ) -> None:
        check_server(server)
        check_request(rounds, 0.0, max_steps, max_gamma)
        self.clients, self.model, self.rounds, self.server = clients, Rounds(clients, start), rounds, server
        self.max_steps, self.max_gamma = max_steps, max_gamma

    def gamma_limit(self, alpha: float) -> float:
        limit = (1 - 1e-9) / (self.clients.L + alpha)
        return limit if self.max_gamma is None else min(limit, self.max_gamma)

    def candidates(self) -> Iterator[ExactChoice]:
        """The coarse grid over clients' settings, each with the best of a grid of servers around the tuned one."""
        mu, L = self.clients.mu, self.clients.L
        longest = int(np.ceil(45 / -np.log1p(-0.5 * mu / L))) if self.max_steps is None else self.max_steps
        yield self.searched(0.0, 1, 0.0)
        counts = {round(float(count)) for count in np.geomspace(2, longest, 14)} if longest > 1 else set()
        for alpha in (0.0, *np.geomspace(mu, L, 3)):
            limit = self.gamma_limit(alpha)
            for K in sorted(counts) if limit > 0 else []:
                for share in (*np.geomspace(1e-4, 0.3, 12), 0.5, 0.7, 0.85, 0.95, 1.0):
                    yield self.searched(float(limit * share), K, float(alpha))

    def tuned(self, gamma: float, K: int, alpha: float) -> ExactChoice:
        descent = self.model.descent(gamma, K, alpha)
        setting = tune(self.server, float(descent.eigenvalues[-1]), float(descent.eigenvalues[0]))
        return self.choice(descent, gamma, K, alpha, setting.eta, setting.momentum)

    def searched(self, gamma: float, K: int, alpha: float) -> ExactChoice:
        descent = self.model.descent(gamma, K, alpha)
        tuned = tune(self.server, float(descent.eigenvalues[-1]), float(descent.eigenvalues[0]))
        momenta = [tuned.momentum] if self.server == "none" else [tuned.momentum, *MOMENTA]
        eta, beta = (grid.ravel() for grid in np.meshgrid(tuned.eta * np.array(STEP_FACTORS), momenta))
        best = int(np.argmin(descent.distance(self.server, eta, beta, self.rounds)))
        return self.choice(descent, gamma, K, alpha, float(eta[best]), float(beta[best]))

    def choice(self, descent: Descent, gamma: float, K: int, alpha: float, eta: float, beta: float) -> ExactChoice:
        left = descent.remaining(self.server, eta, beta, self.rounds)
        low, high = float(descent.eigenvalues[0]), float(descent.eigenvalues[-1])
        return ExactChoice(
            gamma=gamma,
            K=K,
            alpha=alpha,
            server=ServerSetting(eta, beta, spectral_radius(self.server, eta, beta, descent.eigenvalues)),
            kappa=high / low,
            distance=float(np.linalg.norm(left + descent.drift)),
            convergence=float(np.linalg.norm(left)),
            drift=float(np.linalg.norm(descent.drift)),
        )

    def polish(self, choice: ExactChoice) -> ExactChoice:
        """Nelder-Mead over the continuous parameters, in coordinates that cannot leave the allowed region."""
        K, has_gamma, has_alpha = choice.K, choice.gamma > 0, choice.alpha > 0
        has_momentum = self.server != "none"

        def decode(z: Array) -> tuple[float, float, float, float]:
            rest = iter(z)
            eta = choice.server.eta * float(np.exp(next(rest)))
            beta = float(_logistic(next(rest))) if has_momentum else 0.0
            alpha = choice.alpha * float(np.exp(np.clip(next(rest), -50, 50))) if has_alpha else 0.0
            gamma = self.gamma_limit(alpha) * float(_logistic(next(rest))) if has_gamma else 0.0
            return gamma, alpha, eta, beta

        def distance(z: Array) -> float:
            gamma, alpha, eta, beta = decode(z)
            descent = self.model.descent(gamma, K, alpha)
            value = float(descent.distance(self.server, eta, beta, self.rounds))
            return min(value, float(np.finfo(np.float64).max))

        first = [0.0]
        if has_momentum:
            first.append(float(_logit(choice.server.momentum)))
        if has_alpha:
            first.append(0.0)
        if has_gamma:
            first.append(float(_logit(choice.gamma / self.gamma_limit(choice.alpha))))
        found = _nelder_mead(distance, np.array(first))
        gamma, alpha, eta, beta = decode(found)
        polished = self.choice(self.model.descent(gamma, K, alpha), gamma, K, alpha, eta, beta)
        return min(choice, polished, key=lambda candidate: candidate.distance)


def _different(ordered: list[ExactChoice], count: int) -> list[ExactChoice]:
    """The best `count` candidates, one for each alpha and level of log(kappa), and the best of the simple kinds.

    Many (gamma, K) are nearly the same; mini-batch SGD and the best without a proximal term are always among them.
    """
    widest = max(np.log(choice.kappa) for choice in ordered)
    firsts: dict[tuple[float, int], ExactChoice] = {}
    for choice in ordered:
        firsts.setdefault((choice.alpha, round(16 * float(np.log(choice.kappa)) / max(widest, 1e-12))), choice)
    simple = (next(own for own in ordered if own.K == 1), next(own for own in ordered if not own.alpha))
    return list(dict.fromkeys([*list(firsts.values())[:count], *simple]))


def _simplest(found: list[ExactChoice], rounding: float) -> ExactChoice:
    """The simplest of those that are as good as the best."""
    enough = (1 + SLACK) * min(choice.distance for choice in found) + rounding
    good = [choice for choice in found if choice.distance <= enough]
    return min(good, key=lambda choice: (choice.alpha > 0, choice.K, choice.distance))


def _nelder_mead(objective: Callable[[Array], float], first: Array) -> Array:
    simplex = np.vstack([first, first + 0.2 * np.eye(len(first))])
    found = minimize(
        objective,
        first,
        method="Nelder-Mead",
        options={"initial_simplex": simplex, "maxiter": 60 * len(first), "xatol": 1e-4, "fatol": 0.0},
    )
    return np.asarray(found.x, dtype=np.float64)


def _logistic(z: float) -> float:
    return float(1 / (1 + np.exp(-np.clip(z, -40, 40))))


def _logit(share: float) -> float:
    inside = float(np.clip(share, 1e-9, 1 - 1e-9))
    return float(np.log(inside / (1 - inside)))

"""Which gamma, K, alpha and server for T rounds when A_i and c_i are known: the least *actual* distance at round T.

On quadratics round T is a closed form, x_T - x* = drift + V p_T(Lambda) V' (x_0 - x~), so nothing has to be bounded.
For each K in turn a coarse search over gamma, alpha and servers is followed by a local polish of all of them.
Only settings that training can execute are looked at: gamma = 0, or gamma and alpha that make a difference, stable
servers, and the error that rounding adds counts like a distance. The result is the best for this start and this T.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count, product, takewhile
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

from parley.core.errors import InputError
from parley.theory.advice import LEAST_STEP, check_request
from parley.theory.quadratics import Quadratics
from parley.theory.rounds import Rounds, SurrogateDescent
from parley.theory.servers import ServerSetting, check_server, spectral_radius, tune
from parley.theory.theta import Array

__all__ = [
    "ALPHAS",
    "MARGIN",
    "MOMENTA",
    "PROMISING",
    "SCALES",
    "SINGLE",
    "SLACK",
    "STARTS",
    "ExactAdvice",
    "ExactChoice",
    "Form",
    "best_exact_setting",
]

Form = Literal["gradients", "delta"]
"""What clients send: the sum of their gradients, or the change of their model."""

SINGLE = 2.0**-24
"""The relative rounding error of single precision, in which models train."""
SLACK = 5e-3
"""Settings whose errors differ by less, relatively, count as equal."""
ALPHAS = (0.1, 10.0)
"""alpha is 0 or lies between these times mu and L: below it does nothing, above it stops the clients."""
MOMENTA = (0.01, 0.999)
"""Momentum is 0 or lies between these."""
PROMISING = 2.0
"""A K whose coarse search finds more than this times the best error so far is not polished; with alpha, once."""
STARTS = 3
"""Servers with momentum that are polished for each K: their errors at a finite round have many local minima."""
MARGIN = 1.01
"""Server steps must be stable by this factor: what sits on the edge of divergence is no advice."""
SCALES = 0.5 * 0.7 ** np.arange(18)
"""How far the polish looks around the best so far, step by step."""


_FIVE, _NINE = np.linspace(-1, 1, 5), np.linspace(-1, 1, 9)
_SHARES = (*np.geomspace(LEAST_STEP, 0.3, 10).tolist(), 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Client steps of the coarse search, in units of the largest."""
_BETAS = (0.05, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
"""Server momenta of the coarse search."""


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
    rounding: float
    """About how far the arithmetic that trains may end from x_T."""

    @property
    def error(self) -> float:
        """What to expect of a training run at most: distance + rounding."""
        return self.distance + self.rounding


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
    form: Form = "gradients",
    unit: float = SINGLE,
) -> ExactAdvice:
    """The setting of Theta_{1:K} with the least error at T = `rounds` from x_0 = `start` [d], all clients in.

    The error is ||x_T - x*|| plus what rounding to the relative precision `unit` may add when clients send `form`. Of
    settings within 0.5% of the least the simplest is taken: the fewest local steps, then no proximal term, then no
    momentum. gamma is 0 or at least 1e-3/(L + alpha); K is one of 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 70, 100, ...
    A larger `max_steps` never gives a larger error.
    """
    search = _Search(clients, start, rounds, server, max_gamma, form, unit)
    check_request(rounds, 0.0, max_steps, max_gamma)
    if not 0 <= unit < 1:
        raise InputError(f"the relative precision of training must satisfy 0 <= unit < 1, not {unit:g}.")
    enough = int(np.ceil(45 / -np.log1p(-0.5 * clients.mu / clients.L))) + 1
    choices: list[ExactChoice] = []
    for K in _counts(enough if max_steps is None else min(max_steps, enough)):
        # What is found for K depends on smaller K alone, so that a higher limit only adds candidates.
        choices += search.best_with(K, min((choice.error for choice in choices), default=np.inf))
    return ExactAdvice(_simplest(choices), search.tuned(0.0, 1), search.tuned(0.5 / clients.L, enough))


class _Search:
    """One problem. A setting is gamma, K and alpha of the clients, and the server's step and momentum."""

    def __init__(
        self,
        clients: Quadratics,
        start: npt.ArrayLike,
        rounds: int,
        server: str,
        max_gamma: float | None,
        form: Form,
        unit: float,
    ) -> None:
        check_server(server)
        self.clients, self.model, self.rounds, self.server = clients, Rounds(clients, start), rounds, server
        self.max_gamma, self.form = max_gamma, form
        size = max(float(np.linalg.norm(start)), float(np.linalg.norm(clients.empirical_minimiser)), clients.C)
        self.resolution = unit * size
        self.alphas = ALPHAS[0] * clients.mu, ALPHAS[1] * clients.L

    def gammas(self, alpha: float) -> tuple[float, float]:
        """The smallest and largest client step besides 0; the limit may put the largest below the smallest."""
        whole = 1 / (self.clients.L + alpha)
        largest = (1 - 1e-9) * whole
        return LEAST_STEP * whole, largest if self.max_gamma is None else min(largest, self.max_gamma)

    def best_with(self, K: int, rival: float) -> list[ExactChoice]:
        """The best with K local steps of each kind: without and with a proximal term, without and with momentum."""
        best: list[ExactChoice] = []
        for proximal, momentum in product((False, True), repeat=2):
            if (proximal and K == 1) or (momentum and self.server == "none"):
                continue
            starts = self.coarse(K, proximal, momentum)
            if starts and starts[0].error <= (1 if proximal else PROMISING) * rival:
                best.append(min(map(self.polish, starts), key=lambda choice: choice.error))
                rival = min(rival, best[-1].error)
        return best

    def coarse(self, K: int, proximal: bool, momentum: bool) -> list[ExactChoice]:
        """The best few of a grid, by their servers; none where no client step is allowed."""
        clients = [(0.0, 0.0)] if K == 1 else []
        for alpha in (np.geomspace(*self.alphas, 5).tolist() if proximal else [0.0]) if K > 1 else []:
            least, largest = self.gammas(alpha)
            if least <= largest:
                clients += [(max(share * largest, least), alpha) for share in _SHARES]
        if not clients:
            return []
        steps = np.geomspace(0.4, 1.95, 11)  # heavy ball's best step is up to twice that of plain descent
        return self.best_of(K, clients, steps, np.array(_BETAS if momentum else [0.0]), STARTS if momentum else 1)

    def polish(self, choice: ExactChoice) -> ExactChoice:
        """Finer and finer grids around the choice; what is 0 stays 0."""
        for scale in SCALES:
            momentum = _momenta_around(choice.server.momentum, scale * _NINE)
            clients = [
                (gamma, alpha)
                for alpha in _around(choice.alpha, self.alphas, scale * _FIVE)
                for gamma in _around(choice.gamma, self.gammas(alpha), scale * _FIVE)
            ]
            unit = self.descent_step(self.model.descent(choice.gamma, choice.K, choice.alpha))
            steps = choice.server.eta / float(unit) * np.exp(0.4 * scale * _NINE)
            polished = self.best_of(choice.K, clients, steps, np.array(momentum))
            choice = min(choice, *polished, key=lambda candidate: candidate.error)
        return choice

    def best_of(
        self, K: int, clients: list[tuple[float, float]], steps: Array, momenta: Array, most: int = 1
    ) -> list[ExactChoice]:
        """The best `most` servers, of all steps (in units of `descent_step`) and momenta, with their best clients."""
        gamma, alpha = np.array(clients).T[:, :, None]
        descent = self.model.descent(gamma, K, alpha)  # [n, 1, d]
        factors, beta = (grid.ravel() for grid in np.meshgrid(steps, momenta))
        eta = self.descent_step(descent) * factors  # [n, servers]
        error = self.distance(descent, eta, beta) + self.rounding(descent, gamma, K)
        rows = error.argmin(axis=0)
        columns = np.argsort(error.min(axis=0), kind="stable")[:most]
        best = [(clients[rows[j]], float(eta[rows[j], j]), float(beta[j])) for j in columns]
        return [self.choice(gamma, alpha, K, step, momentum) for (gamma, alpha), step, momentum in best]

    @staticmethod
    def descent_step(descent: SurrogateDescent) -> Array:
        """The best server step without momentum for many rounds."""
        return np.asarray(2 / (descent.eigenvalues[..., 0] + descent.eigenvalues[..., -1]), dtype=np.float64)

    def distance(self, descent: SurrogateDescent, eta: npt.ArrayLike, beta: npt.ArrayLike) -> Array:
        """||x_T - x*||; infinite where the server would diverge."""
        stable = spectral_radius(self.server, MARGIN * np.asarray(eta), beta, descent.eigenvalues) < 1
        return np.where(stable, descent.distance(self.server, eta, beta, self.rounds), np.inf)

    def rounding(self, descent: SurrogateDescent, gamma: npt.ArrayLike, K: int) -> Array:
        """About the error of T rounds from rounding the model once, and the message once per step, in every round.

        A gradient is off by a part of L |x|, a difference of models by a part of |x|. Errors gather until the server
        forgets them at its slowest rate; the usual step stands for all, so that servers are compared by distance.
        """
        step, eta = np.maximum(gamma, np.finfo(np.float64).tiny), self.descent_step(descent)
        if self.form == "gradients":
            message = eta * np.minimum(K * self.clients.L, np.sqrt(K) / step)
        else:
            message = np.ones_like(eta) if K == 1 else eta / step  # the size of a single step is free: eta itself
        gathered = np.minimum(self.rounds, 1 / (eta * descent.eigenvalues[..., 0]))
        return np.asarray(self.resolution * (1 + message) * gathered, dtype=np.float64)

    def tuned(self, gamma: float, K: int) -> ExactChoice:
        """Without a proximal term and with the server that Table 2 advises for this surrogate."""
        eigenvalues = self.model.descent(gamma, K).eigenvalues
        setting = tune(self.server, float(eigenvalues[-1]), float(eigenvalues[0]))
        return self.choice(gamma, 0.0, K, setting.eta, setting.momentum)

    def choice(self, gamma: float, alpha: float, K: int, eta: float, beta: float) -> ExactChoice:
        descent = self.model.descent(gamma, K, alpha)
        left = descent.remaining(self.server, eta, beta, self.rounds)
        low, high = float(descent.eigenvalues[0]), float(descent.eigenvalues[-1])
        return ExactChoice(
            gamma=gamma,
            K=K,
            alpha=alpha,
            server=ServerSetting(eta, beta, float(spectral_radius(self.server, eta, beta, descent.eigenvalues))),
            kappa=high / low,
            distance=float(np.linalg.norm(left + descent.drift)),
            convergence=float(np.linalg.norm(left)),
            drift=float(np.linalg.norm(descent.drift)),
            rounding=float(self.rounding(descent, gamma, K)),
        )


def _counts(most: int) -> Iterator[int]:
    """1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 70, 100, 150, ... up to `most`; gamma makes up for what is between."""
    powers = (10**power * share for power in count() for share in (10, 15, 20, 30, 50, 70))
    return takewhile(lambda K: most >= K, chain((1, 2, 3, 4, 5, 6, 8), powers))


def _simplest(choices: list[ExactChoice]) -> ExactChoice:
    """The simplest of those that are as good as the best; K comes first, so that a higher limit on it never hurts."""
    enough = (1 + SLACK) * min(choice.error for choice in choices)
    good = [choice for choice in choices if choice.error <= enough]
    return min(good, key=lambda choice: (choice.K, choice.alpha > 0, choice.server.momentum > 0, choice.error))


def _around(value: float, ends: tuple[float, float], offsets: Array) -> list[float]:
    """Numbers near `value`, in equal ratios, and between the ends; 0 alone near 0."""
    return np.clip(value * np.exp(1.5 * offsets), *ends).tolist() if value else [0.0]


def _momenta_around(value: float, offsets: Array) -> list[float]:
    """Momenta near `value`, with 1 - momentum in about equal ratios; 0 alone near 0."""
    return np.clip(expit(logit(value) + 2 * offsets), *MOMENTA).tolist() if value else [0.0]

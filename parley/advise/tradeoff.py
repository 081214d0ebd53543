"""Which gamma, K, alpha and server for T rounds: Charles and Konečný's trade-off on constants or on a study's clients.

    advice = from_constants(kappa0=100, rounds=50, server="heavy-ball")
    advice = from_study(load_study("study.toml"), server="heavy-ball", ridge=0.01)
    advice = from_federation(federation, MyModule(), rounds=50, ridge=0.01)
    advice = from_quadratics(Quadratics(A, c), start, rounds=50)
    advice.guaranteed.best, advice.actual.best, advice.toml()

`guaranteed` minimises the bound that L, mu, C and the start's distance give for every federation with these constants.
`actual` minimises the distance these very clients reach; it exists where their losses are quadratic and small enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from parley.advise.curvature import Curvature, estimate, of_quadratics
from parley.advise.linear import is_least_squares
from parley.data import Federation
from parley.models.buffers import BufferPolicy
from parley.study.toml import Study
from parley.study.train import Model, make_task
from parley.theory.advice import Advice, Choice, best_setting, bound_terms
from parley.theory.condition import log_distortion_spread
from parley.theory.exact_advice import ExactAdvice, ExactChoice, best_exact_setting
from parley.theory.rounds import Rounds
from parley.theory.surrogate import Quadratics
from parley.training.losses import Loss

Array = npt.NDArray[np.float64]

MOST_STEPS = 1000
"""Local steps advised at most, unless the caller says otherwise."""
CLIENTS = 20
"""Clients whose Hessians are measured where the model is not linear, unless the caller says otherwise."""


@dataclass(frozen=True, eq=False)
class Tradeoff:
    """The advice with everything it rests on."""

    L: float
    mu: float
    C: float
    distance: float
    rounds: int
    server: str
    guaranteed: Advice
    actual: ExactAdvice | None = None
    curvature: Curvature | None = None
    ridge: float = 0.0
    relative: bool = False
    """Only kappa_0 was given: L counts as 1, so gamma and the server's step come in units of 1/L."""

    @property
    def kappa0(self) -> float:
        return self.L / self.mu

    @property
    def best(self) -> Choice | ExactChoice:
        """What to take: the best for these clients if they are known, else the best guaranteed."""
        return self.actual.best if self.actual is not None else self.guaranteed.best

    def bounds(self, choice: Choice, rounds: Array) -> Array:
        """The bound on ||x_t - x*|| at each of `rounds`."""
        spread = float(log_distortion_spread(self.L, self.mu, choice.gamma, choice.K, choice.alpha))
        terms = [bound_terms(spread, self.kappa0, int(t), self.distance, self.C, self.server) for t in rounds]
        return np.array([float(convergence + drift) for convergence, drift in terms])

    def distances(self, choice: ExactChoice, rounds: Array) -> Array:
        """||x_t - x*|| of these clients at each of `rounds`."""
        assert self.curvature is not None
        assert self.curvature.quadratics is not None
        assert self.curvature.start is not None
        descent = Rounds(self.curvature.quadratics, self.curvature.start).descent(choice.gamma, choice.K, choice.alpha)
        server = choice.server
        return np.array([float(descent.distance(self.server, server.eta, server.momentum, int(t))) for t in rounds])

    def toml(self) -> str:
        """The lines of a study that train with the best setting, as the theory assumes it: full gradients."""
        best, momentum = self.best, self.best.server.momentum
        gamma, eta = best.gamma, best.server.eta
        lines = ["[algorithm]", 'name = "local-update"']
        if self.ridge:
            # Weight decay is the local optimizer's, so the change of the model is sent: gamma times the gradients.
            gamma = gamma or eta  # one step: only its product with the server's matters
            eta /= gamma
            lines += ['form = "delta"', f"options = {{ weight_decay = {_shown(self.ridge)} }}"]
        lines += [f"lr = {_shown(gamma)}", f"steps = {best.K}", "batch = 0"]
        lines += [f"alpha = {_shown(best.alpha)}"] if best.alpha else []
        lines += ["", "[algorithm.server]", f'name = "{self.server if momentum else "sgd"}"', f"lr = {_shown(eta)}"]
        lines += [f"momentum = {_shown(momentum)}"] if momentum else []
        return "\n".join(lines)


def from_constants(
    *,
    rounds: int,
    kappa0: float | None = None,
    L: float | None = None,
    mu: float | None = None,
    C: float = 1.0,
    distance: float = 1.0,
    server: str = "none",
    alpha: float = 0.0,
    max_steps: int | None = MOST_STEPS,
    max_gamma: float | None = None,
) -> Tradeoff:
    """The best guarantee from kappa_0, or from L and mu; only C / distance matters, so both default to 1."""
    advice = best_setting(
        rounds=rounds,
        start_distance=distance,
        C=C,
        kappa0=kappa0,
        L=L,
        mu=mu,
        server=server,
        alpha=alpha,
        max_steps=max_steps,
        max_gamma=max_gamma,
    )
    relative = kappa0 is not None
    high, low = (1.0, 1.0 / kappa0) if kappa0 is not None else (float(L or 0), float(mu or 0))
    return Tradeoff(high, low, C, distance, rounds, server, advice, relative=relative)


def from_quadratics(
    clients: Quadratics,
    start: npt.ArrayLike,
    *,
    rounds: int,
    server: str = "none",
    alpha: float = 0.0,
    max_steps: int | None = MOST_STEPS,
    max_gamma: float | None = None,
) -> Tradeoff:
    """The best for known quadratic (least-squares, kernel) clients from x_0 = `start` [d]: guaranteed, and exactly."""
    exact = best_exact_setting(clients, start, rounds, server, max_steps=max_steps, max_gamma=max_gamma)
    return _advise(of_quadratics(clients, start), rounds, server, alpha, max_steps, max_gamma, actual=exact)


def from_federation(
    federation: Federation,
    model: Model,
    *,
    rounds: int,
    loss: str | Loss | None = None,
    seed: int = 0,
    buffers: BufferPolicy = "average",
    weights: Literal["size", "uniform"] = "size",
    server: str = "none",
    alpha: float = 0.0,
    ridge: float = 0.0,
    mu: float | None = None,
    C: float | None = None,
    distance: float | None = None,
    max_steps: int | None = MOST_STEPS,
    max_gamma: float | None = None,
    clients: int | None = None,
    samples: int | None = None,
) -> Tradeoff:
    """The best for any federation, model (an `nn.Module` too) and loss, as measured by `advise.curvature`.

    `C` and `distance` replace what was measured, `mu` says below which curvature directions do not matter. `clients`
    and `samples` limit what is looked at; by default all, but only 20 clients where the model is not linear.
    """
    task = make_task(federation, model, seed, loss, buffers)
    if clients is None and not is_least_squares(task):
        clients = CLIENTS
    curvature = estimate(task, federation, ridge=ridge, mu=mu, weights=weights, samples=samples, clients=clients)
    actual = None
    if curvature.quadratics is not None and curvature.start is not None and len(curvature.ids) == len(federation):
        actual = best_exact_setting(
            curvature.quadratics,
            curvature.start,
            rounds,
            server,
            max_steps=max_steps,
            max_gamma=max_gamma,
            form="delta" if ridge else "gradients",
        )
    return _advise(curvature, rounds, server, alpha, max_steps, max_gamma, C, distance, actual, ridge)


def from_study(study: Study, *, rounds: int | None = None, **options: Any) -> Tradeoff:
    """The same for a study's own data, model, loss, weights and first model; `options` are `from_federation`'s."""
    return from_federation(
        study.federation(),
        study.network,
        rounds=study.rounds if rounds is None else rounds,
        loss=study.loss,
        seed=study.seed,
        buffers=study.buffers,
        weights=study.sampling.weights,
        **options,
    )


def _advise(
    curvature: Curvature,
    rounds: int,
    server: str,
    alpha: float,
    max_steps: int | None,
    max_gamma: float | None,
    C: float | None = None,
    distance: float | None = None,
    actual: ExactAdvice | None = None,
    ridge: float = 0.0,
) -> Tradeoff:
    radius, away = curvature.C if C is None else C, curvature.distance if distance is None else distance
    guaranteed = best_setting(
        rounds=rounds,
        start_distance=away,
        C=radius,
        L=curvature.L,
        mu=curvature.mu,
        server=server,
        alpha=alpha,
        max_steps=max_steps,
        max_gamma=max_gamma,
    )
    return Tradeoff(curvature.L, curvature.mu, radius, away, rounds, server, guaranteed, actual, curvature, ridge)


def _shown(value: float) -> str:
    """A number as TOML takes it, to eight digits; never an integer."""
    text = f"{value:.8g}"
    return text if any(mark in text for mark in ".en") else f"{text}.0"

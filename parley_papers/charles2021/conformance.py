"""The training engine against the theory of paper 001: fixed points, rates and the trade-off between them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.trade_off import Trade, trade_off
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, near, study

TOLERANCE = 1e-10
"""How near the engine's last model must be to the minimiser of the method's surrogate (optima have length 1)."""
RUNTIMES = ("inline", "stacked")


@dataclass(frozen=True)
class _Size:
    dimension: int
    kappa0: float
    steps: int
    federations: int


_SIZES: dict[Scale, _Size] = {
    "smoke": _Size(5, 3.0, 3, 1),
    "cpu": _Size(20, 30.0, 5, 3),
    "paper": _Size(50, 100.0, 10, 10),
}


@study(
    "001/conformance",
    scales={
        scale: f"{s.federations} x 4 clients, d = {s.dimension}, kappa_0 = {s.kappa0:g}" for scale, s in _SIZES.items()
    },
)
def conformance(scale: Scale, context: StudyContext) -> StudyResult:
    """Every local update method trains to the minimiser of its surrogate, at the rate theory gives."""
    size = _SIZES[scale]
    key = pl.Key(0).fold("001/conformance")
    settings = [
        pl.conformance.quadratics.random_setting(key.fold(i), size.dimension, size.kappa0)
        for i in range(size.federations)
    ]
    checks, distances = _fixed_points(settings, size.steps, context)
    checks.append(_maml_is_theta(settings[0], size.steps))
    checks += [check for kind in pl.theory.servers.SERVERS for check in _rate(settings[0], kind)]
    trades = _trades(pl.conformance.quadratics.random_setting(key.fold("trade-off"), 10, 30.0))
    checks += _ordered(trades)
    data = {
        "distance_to_surrogate_optimum": distances,
        "trade_off": {trade.name: {"to_goal": trade.to_goal, "to_optimum": trade.to_optimum} for trade in trades},
    }
    return context.result(checks, {"trade-off": trade_off(trades)}, data)


def _fixed_points(
    settings: list[pl.conformance.quadratics.QuadraticSetting], steps: int, context: StudyContext
) -> tuple[list[Check], dict[str, dict[str, float]]]:
    """The largest distance over all federations, by method and runtime; and that there is something to get right."""
    work = [
        (setting, member)
        for setting in settings
        for member in pl.conformance.members.members(setting, steps, TOLERANCE)
    ]
    distances: dict[str, dict[str, float]] = {}
    drifts = []
    for setting, member in context.track(work, "fixed points"):
        goal = member.goal(setting.clients)
        if member.gamma > 0 and not member.method.needs.pooled:
            drifts.append(float(np.linalg.norm(goal - setting.clients.empirical_minimiser)))
        distance = distances.setdefault(member.name, dict.fromkeys(RUNTIMES, 0.0))
        for runtime in RUNTIMES:
            last = pl.conformance.quadratics.path(setting, member.method, member.rounds, runtime)[-1]
            distance[runtime] = float(np.maximum(distance[runtime], np.linalg.norm(last - goal)))
    checks = [
        at_most(f"{name}: distance to its surrogate optimum", max(by.values()), TOLERANCE)
        for name, by in distances.items()
    ]
    return [*checks, at_least("distance of these optima from the true one", min(drifts), 1e-3)], distances


def _maml_is_theta(setting: pl.conformance.quadratics.QuadraticSetting, steps: int) -> Check:
    """Theorem 2: MAML with K steps sends what Theta_{2K+1} sends; here along the whole path."""
    maml = next(m for m in pl.conformance.members.members(setting, steps, TOLERANCE) if m.name == "maml")
    simulated = pl.LocalUpdate(lr=maml.gamma, steps=2 * steps + 1, batch=None, theta="last", server=maml.method.server)
    paths = [pl.conformance.quadratics.path(setting, method, 20, "inline") for method in (maml.method, simulated)]
    return at_most(f"maml, K = {steps}, moves like Theta_{2 * steps + 1} to", np.abs(paths[0] - paths[1]).max(), 1e-12)


def _rate(setting: pl.conformance.quadratics.QuadraticSetting, kind: str) -> list[Check]:
    """A tuned server on the surrogate of FedAvg: every round as theory says, and Table 2's rho per round."""
    clients, K = setting.clients, 3
    gamma = 0.2 / clients.L
    curvature = clients.curvature(gamma, pl.theory.surrogate.All(K))
    tuned = pl.theory.servers.tune(kind, *curvature)
    method = pl.LocalUpdate(lr=gamma, steps=K, batch=None, server=pl.conformance.members.server(kind, *curvature))
    rounds = int(np.log(1e-11) / np.log(tuned.rho))
    walked = pl.conformance.quadratics.path(setting, method, rounds, "stacked")
    goal = clients.minimiser(gamma, pl.theory.surrogate.All(K))
    predicted = _predicted(setting, kind, tuned, gamma, K, rounds)
    left = np.linalg.norm(walked - goal, axis=1)
    # With momentum, the distance is a polynomial in T times rho^T; the polynomial is known and divided out.
    first = rounds // 2
    shrunk = (
        left[rounds]
        / left[first]
        / (pl.theory.servers.transient(tuned.rho, rounds, kind) / pl.theory.servers.transient(tuned.rho, first, kind))
    )
    name = {"none": "gradient descent", "nesterov": "Nesterov", "heavy-ball": "heavy ball"}[kind]
    return [
        at_most(f"{name}: off the predicted path by", np.abs(walked - predicted).max(), 1e-12),
        near(f"{name}: rate per round", float(shrunk ** (1 / (rounds - first))), tuned.rho, relative=0.02),
    ]


def _predicted(
    setting: pl.conformance.quadratics.QuadraticSetting,
    kind: str,
    tuned: pl.theory.servers.ServerSetting,
    gamma: float,
    K: int,
    rounds: int,
) -> Array:
    hessian, goal = (
        setting.clients.hessian(gamma, pl.theory.surrogate.All(K)),
        setting.clients.minimiser(gamma, pl.theory.surrogate.All(K)),
    )
    return np.stack(
        [pl.theory.servers.advance(kind, tuned, hessian, goal, setting.start, t) for t in range(rounds + 1)]
    )


def _trades(setting: pl.conformance.quadratics.QuadraticSetting, rounds: int = 150) -> list[Trade]:
    """FedSGD and FedAvg with more and more local steps, each with the server step that suits it best."""
    clients = setting.clients
    gamma = 0.1 / clients.L
    trades = []
    for K in (1, 5, 20, 80):
        step, theta = (0.0, pl.theory.surrogate.All(1)) if K == 1 else (gamma, pl.theory.surrogate.All(K))
        tuned = pl.conformance.members.server("none", *clients.curvature(step, theta))
        method = pl.FedSGD(server=tuned) if K == 1 else pl.LocalUpdate(lr=step, steps=K, batch=None, server=tuned)
        walked = pl.conformance.quadratics.path(setting, method, rounds, "stacked")
        goal, optimum = clients.minimiser(step, theta), clients.empirical_minimiser
        to_goal, to_optimum = (np.linalg.norm(walked - point, axis=1) for point in (goal, optimum))
        name = "FedSGD" if K == 1 else f"FedAvg, {K} steps"
        trades.append(Trade(name, to_goal, to_optimum, float(np.linalg.norm(goal - optimum))))
    return trades


def _ordered(trades: list[Trade]) -> list[Check]:
    """The least gain in speed, and the least loss of accuracy, from one number of local steps to the next."""
    left, drifts = [trade.to_goal[20] for trade in trades], [trade.drift for trade in trades]
    gains = [before / after for before, after in pairwise(left)]
    losses = [after - before for before, after in pairwise(drifts)]
    return [
        at_least("more local steps: nearer to the goal after 20 rounds, by a factor of", min(gains), 1.2),
        at_least("more local steps: goal farther from the optimum, by", min(losses), 0.01),
    ]

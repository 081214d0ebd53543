"""How good is advice from L, mu and C alone? The advised setting's actual distance at round T over the best one's.

Two kinds of random quadratic federations, seeds 0, 1, ...: *related* clients share a spectrum and an eigenbasis up to
small changes, *unrelated* ones have each their own. It is held against the best of a grid of (gamma, K) by the actual
distance, which nobody knows in advance; its server and the advised one's are tuned from L and mu alone. The exact mode,
which knows A_i and c_i, meets a grid that also varies alpha and the server's step and momentum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.frontiers import SERVER_NAMES
from parley_papers.figures.regret import regret_figure
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, holds, study

KINDS = ("related", "unrelated")
QUANTILES = (0.25, 0.5, 0.75, 0.9, 1.0)
_PROBLEMS: dict[Scale, tuple[int, int]] = {"smoke": (100, 2), "cpu": (1000, 20)}
"""Seeds for the advice from constants, and for the exact mode."""
_GRID = [(0.0, 1)] + [
    (share, K)
    for K in (2, 3, 5, 10, 20, 50, 100, 300, 1000, 10_000, 100_000)
    for share in np.geomspace(1e-4, 0.99, 20).tolist()
]
"""gamma L and K of the grid."""


@dataclass(frozen=True)
class Judged:
    """One advised setting on one problem."""

    regret: float
    """Its actual distance at round T over that of the best grid point."""
    tightness: float
    """Its actual distance over the bound that was promised; at most 1."""


@study("001/advice", scales={scale: f"seeds 0-{n - 1}, exact mode 0-{m - 1}" for scale, (n, m) in _PROBLEMS.items()})
def advice(scale: Scale, context: StudyContext) -> StudyResult:
    """The bound's choice of gamma and K from L, mu, C: with heavy ball within twice the best on 3 of 4 problems."""
    problems, exact_problems = _PROBLEMS[scale]
    work = [(kind, seed) for kind in KINDS for seed in range(problems)]
    judgements = {
        problem_key: judge(*problem(problem_key[1], problem_key[0] == "related"))
        for problem_key in context.track(work, "constants")
    }
    regrets = {
        kind: {
            server: np.array([judgements[kind, seed][server].regret for seed in range(problems)])
            for server in pl.theory.servers.SERVERS
        }
        for kind in KINDS
    }
    checks: list[Check] = []
    for kind, by_server in regrets.items():
        checks += [_distribution(f"{kind}, {SERVER_NAMES[server]}", ratios) for server, ratios in by_server.items()]
        share = float((by_server["heavy-ball"] <= 2).mean())
        checks.append(at_least(f"{kind}, heavy ball: share of problems within 2x", share, 0.75))
    tightest = max(judgement.tightness for judged in judgements.values() for judgement in judged.values())
    checks.append(at_most("actual distance over its bound, at most", tightest, 1.0 + 1e-9))
    pairs = [(seed, server) for seed in range(exact_problems) for server in pl.theory.servers.SERVERS]
    ratios = [exact_regret(*exact_problem(seed), server) for seed, server in context.track(pairs, "exact mode")]
    checks.append(at_most("exact mode: distance over the best grid point's, at most", max(ratios), 1.01))
    data = {
        "quantiles": QUANTILES,
        "regret": {
            kind: {
                server: {"within_2x": (ratios <= 2).mean(), "quantiles": np.quantile(ratios, QUANTILES), "all": ratios}
                for server, ratios in by_server.items()
            }
            for kind, by_server in regrets.items()
        },
        "exact_mode": ratios,
    }
    return context.result(checks, {"regret": regret_figure(regrets)}, data)


def _distribution(name: str, regrets: Array) -> Check:
    """How far from the best the advice is; it must never diverge."""
    shown = "  ".join(f"{value:.3g}" for value in np.quantile(regrets, QUANTILES))
    percents = ", ".join(f"{100 * level:.0f}" for level in QUANTILES)
    return holds(f"{name}: {percents}% are within", bool(np.isfinite(regrets).all()), shown, "finite", "all")


def problem(seed: int, related: bool) -> tuple[pl.theory.rounds.Rounds, int]:
    """2-20 clients in 2-20 dimensions, kappa_0 from 10 to 1e4, T from 3 to 100, start 1 to 100 away from x*."""
    rng = np.random.default_rng(seed)
    dimension, count = (int(n) for n in rng.integers(2, 21, 2))
    rotation = 10 ** rng.uniform(-2, 0)
    clients = pl.theory.spectra.random_clients(
        dimension, count, 10 ** rng.uniform(1, 4), rng, rotation if related else np.inf
    )
    direction = rng.standard_normal(dimension)
    start = clients.empirical_minimiser + direction * 10 ** rng.uniform(0, 2) / np.linalg.norm(direction)
    return pl.theory.rounds.Rounds(clients, start), round(10 ** rng.uniform(0.5, 2))


def judge(model: pl.theory.rounds.Rounds, rounds: int) -> dict[str, Judged]:
    """Every server's advice from L, mu, C and the start's distance, by what it does to these clients."""
    L, mu, C = model.clients.L, model.clients.mu, model.clients.C
    best = {
        server: pl.theory.advice.best_setting(
            rounds=rounds, start_distance=model.start_distance, C=C, L=L, mu=mu, server=server
        ).best
        for server in pl.theory.servers.SERVERS
    }
    settings = [(share / L, K) for share, K in _GRID] + [(setting.gamma, setting.K) for setting in best.values()]
    descents = model.descent(*np.array(settings).T)
    # What `curvature_bound` gives one by one; equal but for rounding once kappa = 1.
    low, high = np.exp(pl.theory.condition.log_phi(np.array([[mu], [L]]), 0.0, *np.array(settings).T))
    curvatures = list(zip(np.maximum(low, high).tolist(), low.tolist(), strict=True))
    rounding = 1e-12 * (model.start_distance + C)
    judged = {}
    for index, server in enumerate(pl.theory.servers.SERVERS, start=len(_GRID)):
        tuned = [pl.theory.servers.tune(server, *curvature) for curvature in curvatures]
        actual = descents.distance(
            server, [choice.eta for choice in tuned], [choice.momentum for choice in tuned], rounds
        )
        regret = (actual[index] + rounding) / (actual[: len(_GRID)].min() + rounding)
        judged[server] = Judged(float(regret), float(actual[index] / (best[server].bound + rounding)))
    return judged


def exact_problem(seed: int) -> tuple[pl.theory.surrogate.Quadratics, Array, int]:
    """2-8 clients in 2-8 dimensions, kappa_0 from 10 to 1000, T from 1 to 32."""
    rng = np.random.default_rng(seed)
    clients = pl.theory.spectra.random_clients(
        int(rng.integers(2, 9)), int(rng.integers(2, 9)), 10 ** rng.uniform(1, 3), rng, 0.3
    )
    start = clients.empirical_minimiser + rng.standard_normal(clients.c.shape[1]) * 10 ** rng.uniform(-0.5, 1)
    return clients, start, round(10 ** rng.uniform(0, 1.5))


def exact_regret(clients: pl.theory.surrogate.Quadratics, start: Array, rounds: int, server: str) -> float:
    """The exact mode's distance over that of the best grid point."""
    best = pl.theory.exact_advice.best_exact_setting(clients, start, rounds, server, unit=2.0**-53).best.distance
    rounding = 1e-13 * (float(np.linalg.norm(start)) + clients.C)
    return (best + rounding) / (best_of_grid(clients, start, rounds, server) + rounding)


def best_of_grid(clients: pl.theory.surrogate.Quadratics, start: Array, rounds: int, server: str) -> float:
    """Client settings times stable servers, tuned to the true and the worst-case spectrum and off by many factors."""
    model, L, mu = pl.theory.rounds.Rounds(clients, start), clients.L, clients.mu
    least = np.inf
    for K in (1, 2, 4, 10, 30, 100, 1000, 10_000):
        for alpha in (0.0, mu, np.sqrt(mu * L), L):
            for gamma in np.geomspace(1e-3, 0.99, 10) / (L + alpha) if K > 1 else [0.0]:
                descent = model.descent(gamma, K, alpha)
                tuned = pl.theory.servers.tune(server, float(descent.eigenvalues[-1]), float(descent.eigenvalues[0]))
                worst = pl.theory.servers.tune(
                    server, *pl.theory.condition.curvature_bound(L, mu, gamma, K, alpha, "fedavg")
                )
                eta = np.outer([tuned.eta, worst.eta], [0.5, 0.7, 0.9, 1.0, 1.1, 1.3]).ravel()
                momenta = [tuned.momentum, worst.momentum, 0.1, 0.3, 0.5, 0.7, 0.9] if server != "none" else [0.0]
                steps, betas = np.meshgrid(eta, momenta)
                stable = pl.theory.servers.spectral_radius(server, steps, betas, descent.eigenvalues) < 1
                least = min(
                    least, float(descent.distance(server, steps, betas, rounds).min(where=stable, initial=np.inf))
                )
    return least

"""Paper 001, Figures 1-4 and 9: Pareto frontiers from the closed forms of the condition number, with no simulation.

Every point is computed from its own gamma, K and alpha through (11) or (13) and Table 2; the checks hold these points
against the frontier in closed form, which knows kappa_0 and the server only.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.frontiers import SERVER_NAMES, FrontierCurve, frontier_numbers, frontier_panels
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, near, study

POINTS: dict[Scale, int] = {"smoke": 300, "cpu": 3000, "paper": 3000}
CURVE_SCALES: dict[Scale, str] = {"smoke": "300 points per curve", "cpu": "3000 points per curve"}
EXACT = 1e-10
"""How near points must be to the closed form."""


def counts(scale: Scale) -> Array:
    """K from 1 to 10^6."""
    return np.geomspace(1, 1e6, POINTS[scale])


def off(frontier: pl.theory.frontier.Frontier) -> float:
    """The largest distance of a point's rate from the closed form at its suboptimality."""
    expected = pl.theory.frontier.rho_of_delta(frontier.delta, frontier.kappa0, frontier.server)
    return float(np.abs(frontier.rho - expected).max())


@study("001/fig1", scales=CURVE_SCALES)
def fig1(scale: Scale, context: StudyContext) -> StudyResult:
    """Varying K or varying gamma walks along one frontier; only K reaches one-shot averaging."""
    parts: dict[str, list[FrontierCurve]] = {"$\\gamma$ = 0.01, varying $K$": [], "$K$ = 100, varying $\\gamma$": []}
    by_k, by_gamma = parts.values()
    checks: list[Check] = []
    bends = []
    for colour, L in enumerate((5.0, 50.0)):
        over_k = pl.theory.frontier.family_frontier(L, 1.0, gamma=0.01, K=counts(scale))
        ends = np.geomspace(1e-12, 0.5, POINTS[scale] // 2)
        steps = np.concatenate([[0.0], ends, 1 - ends[::-1]]) / L  # dense towards both 0 and 1/L
        over_gamma = pl.theory.frontier.family_frontier(L, 1.0, gamma=steps, K=100)
        by_k.append(FrontierCurve.of(f"$L/\\mu$ = {L:g}", over_k, colour))
        by_gamma.append(FrontierCurve.of(f"$L/\\mu$ = {L:g}", over_gamma, colour))
        last = L / (L * -np.expm1(100 * np.log1p(-1 / L)))  # kappa at gamma = 1/L: phi(L) = L, phi(1) a geometric sum
        checks += [
            at_most(f"L = {L:g}: off the closed form, varying K", off(over_k), EXACT),
            at_most(f"L = {L:g}: off the closed form, varying gamma", off(over_gamma), EXACT),
            at_most(f"L = {L:g}: smallest rho, K -> infinity", over_k.rho.min(), 1e-9),
            near(
                f"L = {L:g}: smallest rho, gamma -> 1/L", over_gamma.rho.min(), (last - 1) / (last + 1), absolute=1e-6
            ),
        ]
        bends.append(_bend(over_k))
    checks.append(at_least("L = 50: varying gamma stays away from rho = 0 by", by_gamma[1].rho.min(), 0.05))
    checks.append(at_least("bend of the frontier, L = 50 over L = 5", bends[1] / bends[0], 1.5))
    headline = "K and $\\gamma$ walk along one frontier; only K reaches one-shot averaging"
    return context.result(checks, {"frontiers": frontier_panels(parts, headline)}, frontier_numbers(parts))


@study("001/fig2", scales=CURVE_SCALES)
def fig2(scale: Scale, context: StudyContext) -> StudyResult:
    """Heavy ball beats Nesterov beats no momentum, the more so the larger L/mu; heavy ball's curve is symmetric."""
    parts: dict[str, list[FrontierCurve]] = {}
    checks: list[Check] = []
    gains = []
    for L in (2.0, 10.0, 100.0):
        made = {
            server: pl.theory.frontier.family_frontier(L, 1.0, 0.5 / L, counts(scale), server=server)
            for server in pl.theory.servers.SERVERS
        }
        parts[f"$L/\\mu$ = {L:g}"] = [
            FrontierCurve.of(SERVER_NAMES[server], frontier, colour)
            for colour, (server, frontier) in enumerate(made.items())
        ]
        inside = made["none"].rho > 1e-6
        rates = [made[server].rho[inside] for server in ("none", "nesterov", "heavy-ball")]
        gap = min(float((slower / faster).min()) for slower, faster in pairwise(rates))
        # Rounds to any accuracy without momentum over those with heavy ball, where nothing drifts (K = 1).
        gains.append(float(np.log(rates[2][0]) / np.log(rates[0][0])))
        ball = made["heavy-ball"]
        mirrored = pl.theory.frontier.delta_of_rho(
            ball.delta, L, "heavy-ball"
        )  # the point (Delta, rho) must be on the curve too
        checks += [
            at_most(f"L = {L:g}: off the closed form", max(off(frontier) for frontier in made.values()), EXACT),
            at_least(f"L = {L:g}: each rho over the next better one's, at least", gap, 1 + 1e-6),
            at_most(f"L = {L:g}: heavy ball off its mirror image", np.abs(mirrored - ball.rho).max(), EXACT),
            at_most(f"L = {L:g}: gain of momentum at K = 10^6", float(made["none"].rho[-1] - ball.rho[-1]), 1e-9),
        ]
    checks.append(at_least("rounds saved by heavy ball at K = 1, least growth with L", _least_growth(gains), 1.5))
    headline = "Heavy ball beats Nesterov beats no momentum, and its frontier is symmetric about $\\rho$ = $\\Delta$"
    figure = frontier_panels(parts, headline, symmetry=True)
    return context.result(checks, {"frontiers": figure}, frontier_numbers(parts) | {"rounds_saved": gains})


@study("001/fig3", scales=CURVE_SCALES)
def fig3(scale: Scale, context: StudyContext) -> StudyResult:
    """A proximal term only shortens the frontier: FedProx's is a subset of FedAvg's."""
    L, strengths = 10.0, (0.0, 0.5, 1.0, 5.0)
    made = {a: pl.theory.frontier.family_frontier(L, 1.0, 0.5 / (L + a), counts(scale), alpha=a) for a in strengths}
    parts = {"L = 10": [_nested(a, frontier, index) for index, (a, frontier) in enumerate(made.items())]}
    checks = [
        at_most(f"alpha = {a:g}: off the frontier of alpha = 0", off(frontier), EXACT) for a, frontier in made.items()
    ]
    for a, frontier in made.items():
        # K -> infinity: phi(lam) = lam / (gamma (lam + alpha)).
        limit = float(pl.theory.servers.rate(np.log(L * (1 + a) / (L + a))))
        checks.append(near(f"alpha = {a:g}: smallest rho", frontier.rho.min(), limit, absolute=1e-9))
    ends = [float(frontier.rho.min()) for frontier in made.values()]
    checks.append(at_least("least growth of the smallest rho with alpha", min(b - a for a, b in pairwise(ends)), 0.05))
    figure = frontier_panels(parts, "A proximal term only shortens the frontier")
    return context.result(checks, {"frontiers": figure}, frontier_numbers(parts))


@study("001/fig4", scales=CURVE_SCALES)
def fig4(scale: Scale, context: StudyContext) -> StudyResult:
    """Where Theorems 3 and 4 apply to MAML (gamma < 1/(K L)), its frontier is a subset of FedAvg's, for each server."""
    L, K = 10.0, counts(scale)
    # Theta_K with gamma = 1/(2 L K): kappa -> kappa_0 exp(-(1 - mu/L)/2) as K grows.
    limit = np.log(L) - (1 - 1 / L) / 2
    parts: dict[str, list[FrontierCurve]] = {}
    checks: list[Check] = []
    for colour, server in enumerate(pl.theory.servers.SERVERS):
        fedavg = pl.theory.frontier.family_frontier(L, 1.0, 0.001, K, server=server)
        maml = pl.theory.frontier.family_frontier(L, 1.0, 0.5 / (L * K), K, server=server, family="maml")
        name = SERVER_NAMES[server]
        parts[name] = [
            FrontierCurve.of("FedAvg", fedavg, colour, "dashed"),
            FrontierCurve.of("MAML, $\\gamma$ = 1/(2KL)", maml, colour, "wide"),
        ]
        checks += [
            at_most(f"{name}: FedAvg off the closed form", off(fedavg), EXACT),
            at_most(f"{name}: MAML off the closed form", off(maml), EXACT),
            near(
                f"{name}: MAML's smallest rho",
                maml.rho.min(),
                float(pl.theory.servers.rate(limit, server)),
                absolute=1e-5,
            ),
            at_most(f"{name}: FedAvg's smallest rho", fedavg.rho.min(), 1e-6),
        ]
    figure = frontier_panels(parts, "While $\\gamma$ < 1/(KL), MAML stays on a part of FedAvg's frontier")
    return context.result(checks, {"frontiers": figure}, frontier_numbers(parts))


@study("001/fig9", scales=CURVE_SCALES)
def fig9(scale: Scale, context: StudyContext) -> StudyResult:
    """A proximal term hardly moves MAML along its frontier within gamma < 1/(K L + alpha), and never off it."""
    L, gamma = 10.0, 1e-7
    whole = pl.theory.frontier.family_frontier(L, 1.0, 0.001, counts(scale))
    curves = [FrontierCurve.of("FedAvg", whole, 6, "dashed")]
    checks: list[Check] = []
    ends = []
    for index, alpha in enumerate((0.0, 0.5, 1.0, 10.0)):
        K = counts(scale) * (1 - 2e-6)  # gamma (K L + alpha) < 1
        frontier = pl.theory.frontier.family_frontier(L, 1.0, gamma, np.maximum(K, 1), alpha=alpha, family="maml")
        curves.append(_nested(alpha, frontier, index, "MAML, "))
        checks.append(at_most(f"alpha = {alpha:g}: off the closed form", off(frontier), EXACT))
        ends.append(float(frontier.rho.min()))
    # (1 - gamma (L + alpha))^(K - 1) against (1 - gamma (mu + alpha))^(K - 1) at K gamma = 1/L: e^-(1 - mu/L).
    limit = float(pl.theory.servers.rate(np.log(L) - (1 - 1 / L)))
    checks.append(near("smallest rho without a proximal term", ends[0], limit, absolute=1e-5))
    checks.append(at_most("shift of the smallest rho by alpha up to 10", max(ends) - min(ends), 1e-5))
    parts = {"L = 10": curves}
    figure = frontier_panels(parts, "A proximal term moves MAML\nneither off its frontier nor along it")
    return context.result(checks, {"frontiers": figure}, frontier_numbers(parts))


def _nested(alpha: float, frontier: pl.theory.frontier.Frontier, index: int, family: str = "") -> FrontierCurve:
    """Curves that lie on each other: the later, the thinner."""
    return FrontierCurve.of(f"{family}$\\alpha$ = {alpha:g}", frontier, index, width=(11.0, 7.5, 4.5, 1.8)[index])


def _bend(frontier: pl.theory.frontier.Frontier) -> float:
    """How far the frontier is from the straight line between its ends, at most, after scaling both axes to [0, 1]."""
    return float((frontier.rho / frontier.rho.max() + frontier.delta / frontier.delta.max() - 1).max())


def _least_growth(values: list[float]) -> float:
    return min(after / before for before, after in pairwise(values))

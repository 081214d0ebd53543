"""Paper 001, Figures 5, 7, 8 and 10: MAML's frontier beyond gamma = 1/(K L), on random Hessians (Appendix D.1).

A = beta_1 B'B + beta_2 I with B standard normal and spectrum from mu = 1 to L exactly; rho follows from cond(Q A),
Delta from cond(Q) by Lemma 5. Once K passes 1/(gamma L) the largest eigenvalue of Q A lies inside the spectrum and the
curve leaves FedAvg's; where psi(L) = psi(mu) it has a cusp, at Delta = (sqrt(kappa_0) - 1)/(sqrt(kappa_0) + 1).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

import parley as pl
from parley_papers.arrays import Array
from parley_papers.charles2021.frontiers import CURVE_SCALES, EXACT, counts, off
from parley_papers.figures.frontiers import SERVER_NAMES, FrontierCurve, frontier_numbers, frontier_panels
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, near, study

GAMMA = 0.001
DRAWS = 30
"""Random matrices for the comparison of dimensions."""


def _spectrum(dimension: int, L: float, draw: int = 0) -> Array:
    return pl.theory.spectra.wishart_spectrum(
        dimension, L, 1.0, pl.Key(0).fold("001/simulated", dimension, draw).numpy()
    )


def _maml(
    scale: Scale, dimension: int, L: float, server: str = "none", alpha: float = 0.0
) -> pl.theory.frontier.Frontier:
    """K from 1 until Q A has lost all precision worth drawing, the cusp among them."""
    K = np.append(counts(scale), pl.theory.frontier.cusp_steps(L, 1.0, GAMMA, alpha))
    return pl.theory.frontier.simulated_maml_frontier(_spectrum(dimension, L), GAMMA, np.sort(K), alpha, server)


def _split(
    frontier: pl.theory.frontier.Frontier, L: float, alpha: float = 0.0
) -> tuple[pl.theory.frontier.Frontier, pl.theory.frontier.Frontier]:
    """The points within gamma < 1/(K L + alpha), and those beyond up to FedAvg's largest Delta."""
    inside = GAMMA * (frontier.K * L + alpha) < 1
    beyond = ~inside & (frontier.delta <= pl.theory.frontier.cusp_delta(frontier.kappa0))
    return _some(frontier, inside), _some(frontier, beyond)


def _some(frontier: pl.theory.frontier.Frontier, which: NDArray[np.bool_]) -> pl.theory.frontier.Frontier:
    arrays = {name: getattr(frontier, name)[which] for name in ("gamma", "K", "alpha", "log_kappa", "rho", "delta")}
    return pl.theory.frontier.Frontier(frontier.kappa0, frontier.server, **arrays)


def _leaving(L: float, alpha: float = 0.0) -> float:
    """Delta where gamma = 1/(K L + alpha): there the curve leaves FedAvg's."""
    K = (1 / GAMMA - alpha) / L
    spread = (K - 1) * (np.log1p(-GAMMA * (1 + alpha)) - np.log1p(-GAMMA * (L + alpha)))
    return float(pl.theory.frontier.delta_of_spread(max(spread, 0.0)))


def _checks(name: str, maml: pl.theory.frontier.Frontier, L: float, alpha: float = 0.0) -> list[Check]:
    """On FedAvg's frontier first, then farther from the origin, with its smallest rho at the cusp."""
    inside, beyond = _split(maml, L, alpha)
    worse = beyond.rho - pl.theory.frontier.rho_of_delta(beyond.delta, maml.kappa0, maml.server)
    lowest = int(np.argmin(maml.rho))
    return [
        at_most(f"{name}: off FedAvg's frontier while gamma < 1/(K L)", off(inside), EXACT),
        at_least(f"{name}: slower than FedAvg beyond, at least by", float(worse.min()), -EXACT),
        near(
            f"{name}: Delta at the cusp (smallest rho)",
            maml.delta[lowest],
            pl.theory.frontier.cusp_delta(L),
            absolute=1e-6,
        ),
    ]


def _curves(
    small: pl.theory.frontier.Frontier,
    large: pl.theory.frontier.Frontier,
    fedavg: pl.theory.frontier.Frontier,
    alpha: float = 0.0,
) -> list[FrontierCurve]:
    kappa0, server = large.kappa0, large.server
    leaving = np.array([_leaving(kappa0, alpha)])
    cusp = np.array([pl.theory.frontier.cusp_delta(kappa0)])
    return [
        FrontierCurve.of("FedAvg", fedavg, 6, "dashed"),
        FrontierCurve("its end, $K = 10^6$", fedavg.rho[-1:], fedavg.delta[-1:], 6, "dot"),
        FrontierCurve.of("MAML, d = 100", large, 1, "wide"),
        FrontierCurve.of("MAML, d = 5", small, 0, "thin"),
        FrontierCurve(
            "$\\gamma$ = 1/(KL)", pl.theory.frontier.rho_of_delta(leaving, kappa0, server), leaving, 1, "ring"
        ),
        FrontierCurve("cusp: $\\Delta$ of one-shot", np.array([large.rho.min()]), cusp, 1, "dot"),
    ]


@study("001/fig5", scales=CURVE_SCALES)
def fig5(scale: Scale, context: StudyContext) -> StudyResult:
    """MAML follows FedAvg's frontier, leaves it at gamma = 1/(K L), and has a cusp at one-shot's suboptimality."""
    L = 10.0
    small, large = _maml(scale, 5, L), _maml(scale, 100, L)
    fedavg = pl.theory.frontier.family_frontier(L, 1.0, GAMMA, counts(scale))
    parts = {"L = 10": _curves(small, large, fedavg)}
    spread = {d: _lowest_rates(d, L) for d in (5, 100)}
    noise = {d: float(np.std(values)) for d, values in spread.items()}
    checks = _checks("d = 5", small, L) + _checks("d = 100", large, L)
    checks.append(at_least("noise over random matrices, d = 5 over d = 100", noise[5] / noise[100], 3.0))
    data = frontier_numbers(parts) | {"smallest_rho_over_draws": {str(d): values for d, values in spread.items()}}
    headline = "MAML follows FedAvg's frontier,\nleaves it, and turns at a cusp"
    return context.result(checks, {"frontiers": frontier_panels(parts, headline)}, data)


@study("001/fig7", scales=CURVE_SCALES)
def fig7(scale: Scale, context: StudyContext) -> StudyResult:
    """The worse conditioned, the sooner MAML's frontier leaves FedAvg's."""
    parts, checks, shares = {}, [], []
    for L in (2.0, 5.0, 10.0, 100.0):
        small, large = _maml(scale, 5, L), _maml(scale, 100, L)
        fedavg = pl.theory.frontier.family_frontier(L, 1.0, GAMMA, counts(scale))
        parts[f"$L/\\mu$ = {L:g}"] = _curves(small, large, fedavg)
        checks += _checks(f"L = {L:g}, d = 100", large, L)
        shares.append(_leaving(L) / pl.theory.frontier.cusp_delta(L))
    drop = min(before / after for before, after in pairwise(shares))
    checks.append(at_least("share of FedAvg's frontier followed, least drop from L to the next", drop, 1.1))
    data = frontier_numbers(parts) | {"share_followed": shares}
    headline = "The worse conditioned, the sooner MAML's frontier leaves FedAvg's"
    return context.result(checks, {"frontiers": frontier_panels(parts, headline, columns=2)}, data)


@study("001/fig8", scales=CURVE_SCALES)
def fig8(scale: Scale, context: StudyContext) -> StudyResult:
    """Server momentum helps FedAvg and MAML alike, beyond gamma = 1/(K L) too."""
    L = 10.0
    parts, checks = {}, []
    rates: dict[str, dict[str, Array]] = {"FedAvg": {}, "MAML": {}}
    for server in pl.theory.servers.SERVERS:
        small, large = _maml(scale, 5, L, server), _maml(scale, 100, L, server)
        fedavg = pl.theory.frontier.family_frontier(L, 1.0, GAMMA, large.K, server=server)
        name = SERVER_NAMES[server]
        parts[name] = _curves(small, large, fedavg)
        checks += _checks(f"{name}, d = 100", large, L)
        rates["FedAvg"][server], rates["MAML"][server] = fedavg.rho, large.rho
    for family, by_server in rates.items():
        steps = (("none", "nesterov"), ("nesterov", "heavy-ball"))
        slower = min(float((by_server[a] - by_server[b]).min()) for a, b in steps)
        checks.append(at_least(f"{family}: gain from each momentum to the next, at every K", slower, -EXACT))
    figure = frontier_panels(parts, "Server momentum helps FedAvg and MAML alike")
    return context.result(checks, {"frontiers": figure}, frontier_numbers(parts))


@study("001/fig10", scales=CURVE_SCALES)
def fig10(scale: Scale, context: StudyContext) -> StudyResult:
    """A proximal term shortens FedAvg's frontier but leaves MAML's where it is."""
    L = 10.0
    parts, checks, made, ends = {}, [], {}, []
    grid = np.linspace(0.02, pl.theory.frontier.cusp_delta(L), 200)
    for alpha in (0.0, 0.5, 1.0, 10.0):
        small, large = _maml(scale, 5, L, alpha=alpha), _maml(scale, 100, L, alpha=alpha)
        fedavg = pl.theory.frontier.family_frontier(L, 1.0, GAMMA, counts(scale), alpha=alpha)
        name = f"$\\alpha$ = {alpha:g}"
        parts[name] = _curves(small, large, fedavg, alpha)
        checks += _checks(f"alpha = {alpha:g}, d = 100", large, L, alpha)
        made[alpha] = np.interp(grid, large.delta, large.rho)
        limit = float(pl.theory.servers.rate(np.log(L * (1 + alpha) / (L + alpha))))
        checks.append(near(f"alpha = {alpha:g}: FedAvg's smallest rho", fedavg.rho.min(), limit, absolute=1e-4))
        ends.append(float(fedavg.rho.min()))
    moved = max(float(np.abs(moved_rho - made[0.0]).max()) for moved_rho in made.values())
    checks.append(at_most("MAML's rho moved by alpha up to 10, at equal Delta", moved, 0.02))
    grown = min(after - before for before, after in pairwise(ends))
    checks.append(at_least("FedAvg's smallest rho, least growth with alpha", grown, 0.05))
    figure = frontier_panels(
        parts, "A proximal term shortens FedAvg's frontier and leaves MAML's where it is", columns=2
    )
    return context.result(checks, {"frontiers": figure}, frontier_numbers(parts))


def _lowest_rates(dimension: int, L: float) -> list[float]:
    """rho at the cusp for many random matrices."""
    K = pl.theory.frontier.cusp_steps(L, 1.0, GAMMA)
    return [
        float(pl.theory.frontier.simulated_maml_frontier(_spectrum(dimension, L, draw), GAMMA, K).rho[0])
        for draw in range(1, DRAWS + 1)
    ]

"""Table 1: what functional boosting converges to, by what differs between clients; the optimum is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.boosting_settings import settings_figure
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, claims, near, study
from parley_papers.threads import single_threaded

oracles = pl.conformance.boosting_oracles
cells = pl.conformance.boosting_problems

GAMMA = 0.5
PRIVATE = (0, 3, 6, 9)
SHIFTS = (1.0, 0.5, 0.25, 0.125, 0.0625)
LIPSCHITZ, LARGEST = 2.0, 1.0
"""L and B of f*(x) = sin 2x."""
_ROUNDS: dict[Scale, tuple[int, ...]] = {"smoke": (9, 16, 36, 64), "cpu": (16, 64, 256, 1024)}


@dataclass(frozen=True, eq=False)
class Setting:
    """A problem boosted with K = sqrt(T) local steps."""

    problem: cells.Problem
    iterates: pl.theory.boosting.Iterates

    @property
    def error(self) -> float:
        """||f^T - f*||^2."""
        return float(self.iterates.errors(self.problem.optimum, self.problem.alpha)[-1])

    @property
    def tightness(self) -> float:
        """The largest of the residual, the learner and the function over its bound: (24), (25), Lemma D.1."""
        G, gamma, mu = self.iterates.gradient, self.iterates.gamma, cells.MU
        return max(
            self.iterates.residual / pl.theory.boosting.residual_bound(G, gamma),
            self.iterates.learner / pl.theory.boosting.learner_bound(G, gamma),
            self.iterates.function / pl.theory.boosting.function_bound(G, gamma, mu),
        )


def shrunk(phi: Array, g: Array) -> Array:
    """h = gamma phi."""
    return GAMMA * phi


def boosted(
    problem: cells.Problem,
    oracle: pl.theory.boosting.Oracle,
    rounds: int,
    numerator: float = 2.0,
    **how: bool,
) -> Setting:
    """K = sqrt(T), eta = numerator / (mu (tK + k + 1))."""
    local = round(rounds**0.5)
    iterates = pl.theory.boosting.boost(
        problem.alpha,
        problem.gradient,
        oracle,
        rounds=rounds,
        local=local,
        mu=cells.MU,
        steps=pl.theory.boosting.decreasing(numerator, cells.MU, local),
        outputs=problem.optimum.shape[1],
        **how,
    )
    return Setting(problem, iterates)


def with_lipschitz(problem: cells.Problem, rounds: int) -> Setting:
    """Algorithm 3: g is left alone, h = gamma phi everywhere; the square loss itself is 1-strongly convex."""
    local = round(rounds**0.5)
    iterates = pl.theory.boosting.boost(
        problem.alpha,
        problem.gradient,
        lambda phi, g: g - GAMMA * (g - phi),
        rounds=rounds,
        local=local,
        mu=0.0,
        steps=pl.theory.boosting.decreasing(4.0, 1.0, local),
        outputs=1,
        largest=True,
    )
    return Setting(problem, iterates)


def slope(rounds: tuple[int, ...], errors: list[float]) -> float:
    """Of log error against log T."""
    return float(np.polyfit(np.log(rounds), np.log(errors), 1)[0])


def engine_apart() -> float:
    """The engine's functions against the theory's, in all three settings, largest difference on any input."""
    rounds, local = 3, 4
    decaying = pl.Inverse(every=1, offset=2)
    single, two, three = (
        cells.same_inputs(),
        cells.own_cells(3),
        cells.shifted(0.5),
    )
    occupied = (two.alpha > 0)[:, :, None]
    tried = [
        (
            single,
            pl.FFGB(2 / cells.MU, local, cells.MU, decaying, oracles.Shrunk(cells.CELLS, GAMMA)),
            shrunk,
            cells.MU,
            pl.theory.boosting.decreasing(2, cells.MU, local),
        ),
        (
            single,
            pl.FFGB(2 / cells.MU, local, cells.MU, decaying, oracles.LargestCell(cells.CELLS)),
            oracles.largest_cell,
            cells.MU,
            pl.theory.boosting.decreasing(2, cells.MU, local),
        ),
        (
            two,
            pl.FFGB(
                4 / cells.MU,
                local,
                cells.MU,
                decaying,
                oracles.Shrunk(cells.SHARED + cells.CLIENTS, GAMMA),
                "l-infinity",
            ),
            lambda phi, g: np.where(occupied, GAMMA * phi, 0.0),
            cells.MU,
            pl.theory.boosting.decreasing(4, cells.MU, local),
        ),
        (
            three,
            pl.FFGB(4.0, local, 0.0, decaying, oracles.Cones(GAMMA), "lipschitz"),
            lambda phi, g: g - GAMMA * (g - phi),
            0.0,
            pl.theory.boosting.decreasing(4, 1.0, local),
        ),
    ]
    apart = []
    for problem, method, oracle, mu, steps in tried:
        iterates = pl.theory.boosting.boost(
            problem.alpha,
            problem.gradient,
            oracle,
            rounds=rounds,
            local=local,
            mu=mu,
            steps=steps,
            outputs=problem.optimum.shape[1],
        )
        apart.append(float(np.abs(problem.learned(problem.run(method, rounds)) - iterates.functions[-1]).max()))
    return max(apart)


@study(
    "002/table1",
    scales={scale: f"four clients, K = sqrt(T), T up to {rounds[-1]}" for scale, rounds in _ROUNDS.items()},
)
@single_threaded
def table1(scale: Scale, context: StudyContext) -> StudyResult:
    """Boosting reaches f* where inputs agree, and else stays within the radius of omega_TV or of omega_W1."""
    rounds = _ROUNDS[scale]
    last = rounds[-1]
    same, agreeing = (
        cells.same_inputs(),
        cells.same_inputs(conflict=False),
    )
    arms = {
        "h = gamma phi": (same, shrunk, True),
        "largest cell": (same, oracles.largest_cell, True),
        "h = gamma phi, no residual": (same, shrunk, False),
        "largest cell, no residual": (same, oracles.largest_cell, False),
    }
    settings_of = {
        name: [boosted(problem, oracle, T, residual=keeps) for T in context.track(rounds, name)]
        for name, (problem, oracle, keeps) in arms.items()
    }
    errors = {name: [setting.error for setting in settings] for name, settings in settings_of.items()}
    unconflicted = boosted(agreeing, oracles.largest_cell, last, residual=False).error
    tv = {n: boosted(cells.own_cells(n), _on_own_cells(n), last, 4.0, largest=True) for n in PRIVATE}
    w1 = {shift: with_lipschitz(cells.shifted(shift), last) for shift in SHIFTS}
    radii_tv = [
        pl.theory.boosting.total_variation_radius(s.iterates.gradient, s.problem.omega_tv, cells.MU, s.iterates.gamma)
        for s in tv.values()
    ]
    constants = {shift: _constants(problem.problem) for shift, problem in w1.items()}
    radii_w1 = [
        pl.theory.boosting.wasserstein_radius(LIPSCHITZ, constants[shift]["D"], LARGEST, s.problem.omega_w1, GAMMA)
        for shift, s in w1.items()
    ]
    checks = _checks(scale, rounds, errors, settings_of, unconflicted, tv, radii_tv, w1, radii_w1)
    figure = settings_figure(
        rounds,
        errors,
        ([s.problem.omega_tv for s in tv.values()], [s.error for s in tv.values()], radii_tv),
        ([s.problem.omega_w1 for s in w1.values()], [s.error for s in w1.values()], radii_w1),
    )
    data = {
        "rounds": rounds,
        "errors": errors,
        "tv": [
            {
                "omega": s.problem.omega_tv,
                "error": s.error,
                "radius": r,
                "G": s.iterates.gradient,
                "gamma": s.iterates.gamma,
            }
            for s, r in zip(tv.values(), radii_tv, strict=True)
        ],
        "w1": [
            {
                "omega": s.problem.omega_w1,
                "omega_tv": s.problem.omega_tv,
                "error": s.error,
                "radius": r,
                **constants[shift],
            }
            for (shift, s), r in zip(w1.items(), radii_w1, strict=True)
        ],
    }
    return context.result(checks, {"table1": figure}, data)


def _checks(
    scale: Scale,
    rounds: tuple[int, ...],
    errors: dict[str, list[float]],
    settings_of: dict[str, list[Setting]],
    unconflicted: float,
    tv: dict[int, Setting],
    radii_tv: list[float],
    w1: dict[float, Setting],
    radii_w1: list[float],
) -> list[Check]:
    exact = pl.theory.boosting.bias_without_residual(GAMMA, cells.MU) ** 2 * _mean_square(
        settings_of["h = gamma phi"][0].problem.optimum * (1 + cells.MU)
    )
    kept, dropped = errors["largest cell"][-1], errors["largest cell, no residual"][-1]
    start = _mean_square(next(iter(tv.values())).problem.optimum)
    tv_errors, w1_errors = [s.error for s in tv.values()], [s.error for s in w1.values()]
    bounded = [s.tightness for name in ("h = gamma phi", "largest cell") for s in settings_of[name]]
    return [
        at_most("the engine against the theory, largest difference", engine_apart(), 1e-10),
        at_most("slope of the squared error in T, h = gamma phi", slope(rounds, errors["h = gamma phi"]), -0.9),
        near(
            "bias without the residual, h = gamma phi, over the exact one",
            errors["h = gamma phi, no residual"][-1] / exact,
            1.0,
            relative=1e-6,
        ),
        at_least("without it, conflicting labels against agreeing ones", dropped / unconflicted, 1.5),
        at_most(
            "residual, learner and function over their bounds (24), (25), D.1",
            max([*bounded, *[s.tightness for s in tv.values()]]),
            1 + 1e-9,
        ),
        at_most("omega_TV = 0: error over ||f*||^2", tv_errors[0] / start, 0.02),
        at_most(
            "omega_TV > 0: error over G^2 omega / (mu gamma)^2, largest",
            max(e / r for e, r in zip(tv_errors[1:], radii_tv[1:], strict=True)),
            1.0,
        ),
        at_least("the error rises with omega_TV, least step", min(np.diff(tv_errors)), 0.0),
        at_most(
            "W1: error over L (L D + B) omega / gamma^2, largest",
            max(e / r for e, r in zip(w1_errors, radii_w1, strict=True)),
            1.0,
        ),
        near(
            "omega_TV meanwhile, at all shifts",
            min(s.problem.omega_tv for s in w1.values()),
            1 - 1 / cells.CLIENTS,
            absolute=1e-9,
        ),
        *claims(
            [
                at_most("slope of the squared error in T, largest cell", slope(rounds, errors["largest cell"]), -0.5),
                at_least("largest cell: error without the residual over with it", dropped / kept, 10.0),
                at_most("W1: error at the smallest shift over that at the largest", w1_errors[-1] / w1_errors[0], 0.1),
            ],
            scale,
        ),
    ]


def _on_own_cells(private: int) -> pl.theory.boosting.Oracle:
    """h = gamma phi where a client has samples, 0 elsewhere."""
    occupied = (cells.own_cells(private).alpha > 0)[:, :, None]
    return lambda phi, g: np.where(occupied, GAMMA * phi, 0.0)


def _constants(problem: cells.Problem) -> dict[str, float]:
    """L, B, D and G of Theorem 4.4 (G needs W_2 between all pairs of clients)."""
    points = [x for x, _ in problem.rows]
    return {
        "L": LIPSCHITZ,
        "B": LARGEST,
        "D": pl.theory.boosting.support_distance(points),
        "G": pl.theory.boosting.gradient_bound(points, LIPSCHITZ, LARGEST),
    }


def _mean_square(f: Array) -> float:
    return float(np.square(f).sum(-1).mean())

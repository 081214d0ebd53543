"""The generalisation bounds of paper 004 beside the truth, on problems where the truth is known or can be measured.

Mean estimation (l = 1/2 ||theta - z||^2, d = 5) has closed forms; ridge regression (d = 3, ridge 1, L/mu = 4) is
measured. Nothing is tuned. Comparisons with a measured mean allow `Z` of its standard errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.generalization_gap import GapCurve, GapPanel, gap_figure
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, near, study

Z = 4.5
_APART = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_TAUS = (1, 2, 4, 8, 16, 32)
_ETA = 0.2
_DRAWN_1, _DRAWN_2 = (1, 2, 3, 5, 10, 20, 40), (1, 2, 3, 4, 5)
"""Clients drawn, with and without replacement."""
_SIZES: dict[Scale, tuple[int, tuple[int, ...]]] = {
    "smoke": (400, (1, 2, 4, 8, 16)),
    "cpu": (4000, (1, 2, 4, 8, 16, 32, 64)),
}
"""Trials, and the numbers of clients."""


@dataclass(frozen=True)
class _Row:
    """Measured on one problem, and what it should be where that is known."""

    simulated: pl.theory.generalization.Trials
    gap: float | None
    bound: float

    @property
    def off(self) -> float:
        """Distance of the measured gap from the closed form, in standard errors."""
        return abs(self.simulated.gap.value - (self.gap or 0.0)) / self.simulated.gap.error

    @property
    def margin(self) -> float:
        """(Bound - gap) in standard errors; where both are the same number in every trial, 0."""
        margin = self.simulated.margin()
        return margin.value / margin.error if margin.error > 0 else 0.0

    def numbers(self) -> dict[str, Any]:
        gap, margin = vars(self.simulated.gap), vars(self.simulated.margin())
        return {"gap": gap, "exact_gap": self.gap, "bound": self.bound, "bound_minus_gap": margin}


def mean_estimation(K: int, apart: float = 0.0, samples: int = 20) -> pl.theory.generalization.MeanEstimation:
    """K clients with means `apart` from the origin on average, in fixed directions that sum to zero for even K."""
    return pl.theory.generalization.MeanEstimation(apart * _directions(K, 5), samples)


def ridge_regression(K: int, apart: float = 0.0) -> pl.theory.generalization.RidgeRegression:
    return pl.theory.generalization.RidgeRegression(np.ones(3) + apart * _directions(K, 3), 20, ridge=1.0)


def _directions(K: int, d: int) -> Array:
    unit = np.eye(d)[np.arange(K) // 2 % d]
    return np.asarray(unit * np.where(np.arange(K) % 2, -1.0, 1.0)[:, None], dtype=np.float64)


def _questions(
    clients: Sequence[int],
) -> list[tuple[str, pl.theory.generalization.LearningProblem, pl.theory.generalization.Rule]]:
    """All that is measured: what it belongs to, the problem and the clients' rule."""
    exact = pl.theory.generalization.Minimise()
    return [
        *(("mean estimation, alike", mean_estimation(K), exact) for K in clients),
        *(("ridge regression, alike", ridge_regression(K), exact) for K in clients),
        *(("mean estimation, apart", mean_estimation(8, far), exact) for far in _APART),
        *(("ridge regression, apart", ridge_regression(8, far), exact) for far in _APART),
        *(
            ("steps on one sample", mean_estimation(4, 1, 32), pl.theory.generalization.Descend(_ETA, tau))
            for tau in _TAUS
        ),
        *(
            ("steps on fresh samples", mean_estimation(4, 1, 4 * tau), pl.theory.generalization.OnePass(_ETA, tau))
            for tau in _TAUS
        ),
    ]


@study("004/bounds", scales={scale: f"{t} trials, up to {K[-1]} clients" for scale, (t, K) in _SIZES.items()})
def bounds(scale: Scale, context: StudyContext) -> StudyResult:
    """Theorems 4.1 and C.1 hold; the gap of alike clients falls like 1/K, not 1/K^2; both sampling bounds fail."""
    trials, clients = _SIZES[scale]
    key = pl.Key(0).fold("004/bounds")
    measured: dict[str, list[_Row]] = {}
    for number, (group, problem, rule) in enumerate(context.track(_questions(clients), "problems")):
        start = np.ones(problem.dimension)
        simulated = pl.theory.generalization.simulate(
            problem, rule, trials=trials, rng=key.fold(number).numpy(), start=start
        )
        known = (
            pl.theory.generalization.exact_terms(problem, rule, start).gap
            if isinstance(problem, pl.theory.generalization.MeanEstimation)
            else None
        )
        bound = (
            pl.theory.generalization.exact_bound(problem, rule, start)
            if isinstance(problem, pl.theory.generalization.MeanEstimation)
            else None
        )
        measured.setdefault(group, []).append(_Row(simulated, known, bound.total if bound else simulated.bound().value))
    rounds = pl.theory.generalization.simulate_rounds(
        mean_estimation(4, 1, 16),
        pl.theory.generalization.OnePass(_ETA, 4),
        rounds=5,
        trials=trials,
        rng=key.fold("rounds").numpy(),
    )
    drawn = {
        "Case I, 2 alike clients": [
            pl.theory.generalization.participation(mean_estimation(2), c, replacement=True) for c in _DRAWN_1
        ],
        "Case II, 6 unlike clients": [
            pl.theory.generalization.participation(mean_estimation(6, 1, 10_000), c, replacement=False)
            for c in _DRAWN_2
        ],
    }
    checks = [
        *_theorems(measured, rounds),
        *_alike(clients, measured["mean estimation, alike"], measured["ridge regression, alike"]),
        *_apart(measured["mean estimation, apart"]),
        *_steps(measured["steps on one sample"], measured["steps on fresh samples"], rounds),
        *_partial(*drawn.values()),
    ]
    data: dict[str, Any] = {name: [row.numbers() for row in rows] for name, rows in measured.items()}
    data["rounds"] = [{"gap": vars(f.gap), "gap_as_printed_in_8": vars(f.start_gap)} for f in rounds]
    data |= {name: [asdict(participation) for participation in simulated] for name, simulated in drawn.items()}
    return context.result(checks, {"bounds": gap_figure(_panels(clients, measured, drawn))}, data)


def _theorems(measured: dict[str, list[_Row]], rounds: list[pl.theory.generalization.Trials]) -> list[Check]:
    rows = [row for group in measured.values() for row in group]
    rows += [_Row(simulated, None, simulated.bound().value) for simulated in rounds]
    known = [row.off for row in rows if row.gap is not None]
    return [
        at_least(
            "bound above the measured gap everywhere: least difference, in standard errors",
            min(row.margin for row in rows),
            -Z,
        ),
        at_most("mean estimation: measured gap off its closed form, in standard errors", max(known), Z),
    ]


def _alike(clients: Sequence[int], mean: list[_Row], ridge: list[_Row]) -> list[Check]:
    K = np.array(clients, dtype=np.float64)
    first = [
        pl.theory.generalization.exact_bound(mean_estimation(k)).local / row.simulated.gap.value
        for k, row in zip(clients, mean, strict=True)
    ]
    late = K >= 4
    return [
        near("alike: slope of the measured gap in K, mean estimation", _slope(K, _values(mean)), -1, absolute=0.05),
        near("alike: slope of the measured gap in K, ridge regression", _slope(K, _values(ridge)), -1, absolute=0.1),
        near(
            "alike: slope of Theorem 4.1 itself for K >= 4",
            _slope(K[late], np.array([row.bound for row in mean])[late]),
            -1,
            absolute=0.05,
        ),
        at_most("alike, K > 1: its first term over the measured gap (a bound would be >= 1)", max(first[1:]), 0.6),
    ]


def _apart(mean: list[_Row]) -> list[Check]:
    near_by, far = mean[0].simulated.gap, mean[-1].simulated.gap
    change = abs(far.value - near_by.value) / float(np.hypot(far.error, near_by.error))
    return [
        at_most("apart: change of mean estimation's measured gap, in standard errors", change, Z),
        at_least("apart: Theorem 4.1 grows by a factor of", mean[-1].bound / mean[0].bound, 5),
    ]


def _steps(same: list[_Row], fresh: list[_Row], rounds: list[pl.theory.generalization.Trials]) -> list[Check]:
    rise, fall = (_values(rows) for rows in (same, fresh))
    return [
        at_least("steps on one sample: measured gap, last over first", float(rise[-1] / rise[0]), 2),
        at_least("steps on fresh samples: measured gap, first over last", float(fall[0] / fall[-1]), 2),
        at_most(
            "(8) as printed: off zero, in standard errors",
            max(abs(f.start_gap.value) / f.start_gap.error for f in rounds),
            Z,
        ),
        at_least(
            "(8) with the model a round makes: above zero, in standard errors",
            min(f.gap.value / f.gap.error for f in rounds),
            10,
        ),
    ]


def _partial(
    duplicates: list[pl.theory.generalization.Participation], absent: list[pl.theory.generalization.Participation]
) -> list[Check]:
    everything = [*duplicates, *absent]
    return [
        at_least(
            "Case I with alike clients: truth over the printed bound, largest",
            max(simulated.gap / simulated.printed.total for simulated in duplicates),
            2,
        ),
        at_least(
            "Case II with unlike clients: truth over the printed bound, largest",
            max(simulated.gap / simulated.printed.total for simulated in absent),
            5,
        ),
        at_least(
            "repaired bound over the out-of-sample part, least",
            min(simulated.repaired.total / simulated.out_of_sample for simulated in everything),
            1 - 1e-12,
        ),
    ]


def _panels(
    clients: Sequence[int],
    measured: dict[str, list[_Row]],
    drawn: dict[str, list[pl.theory.generalization.Participation]],
) -> list[GapPanel]:
    K, tau, far = (np.array(values, dtype=np.float64) for values in (clients, _TAUS, _APART))
    first = np.array([pl.theory.generalization.exact_bound(mean_estimation(k)).local for k in clients])
    alike, apart = (
        [
            *_pair(x, measured[f"ridge regression, {group}"], "ridge regression", 1),
            *_pair(x, measured[f"mean estimation, {group}"], "mean estimation", 0),
        ]
        for group, x in (("alike", K), ("apart", far))
    )
    steps = [
        *_pair(tau, measured["steps on one sample"], "on the same 32 samples", 2),
        *_pair(tau, measured["steps on fresh samples"], "on 4 fresh samples each", 3),
    ]
    sampled = [
        curve
        for (name, simulated), x, colour in zip(drawn.items(), (_DRAWN_1, _DRAWN_2), (4, 5), strict=True)
        for curve in _sampled(np.array(x, dtype=np.float64), simulated, name, colour)
    ]
    return [
        GapPanel(
            "Alike clients: more of them",
            "clients K",
            [*alike, GapCurve("only the bound's first term, $1/K^2$", K, first, "false")],
        ),
        GapPanel("Eight clients, farther and farther apart", "distance of their optima from the centre", apart),
        GapPanel("Local steps (mean estimation)", "local steps $\\tau$", steps),
        GapPanel("Only some clients take part (mean estimation)", "clients drawn", sampled),
    ]


def _values(rows: list[_Row]) -> Array:
    return np.array([row.simulated.gap.value for row in rows])


def _slope(x: Array, y: Array) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _pair(x: Array, rows: list[_Row], name: str, colour: int) -> list[GapCurve]:
    errors = np.array([row.simulated.gap.error for row in rows])
    exact = None if rows[0].gap is None else np.array([row.gap for row in rows], dtype=np.float64)
    theorem = "4.1" if rows[0].simulated.exact else "C.1"
    return [
        GapCurve(f"{name}: Theorem {theorem}", x, np.array([row.bound for row in rows]), "bound", colour),
        GapCurve(f"{name}: truth", x, _values(rows), "truth", colour, errors, exact),
    ]


def _sampled(
    x: Array, simulated: list[pl.theory.generalization.Participation], name: str, colour: int
) -> list[GapCurve]:
    gaps = np.array([participation.gap for participation in simulated])
    return [
        GapCurve(f"{name}: truth", x, gaps, "truth", colour, exact=gaps),
        GapCurve(
            f"{name}: printed",
            x,
            np.array([participation.printed.total for participation in simulated]),
            "false",
            colour,
        ),
    ]

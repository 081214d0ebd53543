"""The stopping rule (23) on kernels with polynomial decay: its rate, and how near the best round it stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parley_papers.arrays import Array
from parley_papers.figures.line_panels import LinePanel, line_panels
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, near, study
from parley_papers.su2023.setting import SIGMA
from parley_papers.su2023.stopping_models import LAWS, Ideal, Intervals, StoppableModel
from parley_papers.threads import single_threaded

BETAS = (1.0, 1.5, 2.0, 3.0)
NORMS = (0.3, 3.0)
WIDE = tuple(4**power for power in range(3, 11))
"""N of the ideal model: 64 to 1,048,576."""
_SIZES: dict[Scale, tuple[tuple[int, ...], int]] = {
    "smoke": ((64, 128, 256, 512), 8),
    "cpu": ((64, 128, 256, 512, 1024), 40),
    "paper": ((64, 128, 256, 512, 1024, 2048), 40),
}
"""N of the federations, and truths per law."""


@dataclass(frozen=True, eq=False)
class StoppedErrors:
    """Of the truths of one law at one (beta, N)."""

    error: Array
    """At T."""
    ratio: Array
    """T over the best round."""
    excess: Array
    """The error at T over the least one."""


def stopped(model: StoppableModel, truths: Array, T: int) -> StoppedErrors:
    """Stops at T; the best round is sought from T / 300 to 30 T."""
    rounds = np.unique(np.append(np.geomspace(max(1, T / 300), 30 * T, 120).round(), T))
    errors = model.errors(truths, rounds)
    at_T = errors[:, rounds == T][:, 0]
    return StoppedErrors(at_T, T / rounds[errors.argmin(axis=1)], at_T / errors.min(axis=1))


@dataclass(frozen=True, eq=False)
class Table:
    """Outcomes by law, beta and N."""

    sizes: Sequence[int]
    cells: dict[tuple[str, float, int], StoppedErrors]

    def medians(self, what: str, law: str, beta: float) -> Array:
        """By N."""
        return np.array([np.median(getattr(self.cells[law, beta, N], what)) for N in self.sizes])

    def pooled(self, what: str) -> dict[str, dict[float, float]]:
        """Medians over all truths and N, by law and beta."""
        return {
            law: {
                beta: float(np.median(np.concatenate([getattr(self.cells[law, beta, N], what) for N in self.sizes])))
                for beta in BETAS
            }
            for law in LAWS
        }

    def slope(self, law: str, beta: float) -> float:
        """The exponent of N in the median error at T."""
        return float(np.polyfit(np.log(self.sizes), np.log(self.medians("error", law, beta)), 1)[0])


@study(
    "000/stopping",
    scales={s: f"six clients, N = {sizes[0]} ... {sizes[-1]}, {n} truths a law" for s, (sizes, n) in _SIZES.items()},
)
@single_threaded
def stopping(scale: Scale, context: StudyContext) -> StudyResult:
    """Stopping at T has the minimax rate, and for rough truths T is within a factor 2 of the best round."""
    sizes, draws = _SIZES[scale]
    table, ideal, moved = Table(sizes, {}), Table(WIDE, {}), dict[str, float]()
    for beta, N in context.track([(beta, N) for beta in BETAS for N in sizes], "federations"):
        model = Intervals.draw(beta, N)
        for name, law in LAWS.items():
            table.cells[name, beta, N] = stopped(model, law.draw(beta, N, draws), model.stop())
        if sizes[-1] == N:
            for norm in NORMS:
                truths = norm * LAWS["rough"].draw(beta, N, draws)
                for given in (1.0, norm):
                    ratio = float(np.median(stopped(model, truths, model.stop(given)).ratio))
                    moved[f"beta = {beta:g}, norm {norm:g}, rule given {given:g}"] = ratio
    for beta in BETAS:
        for N in WIDE:
            wide = Ideal(beta, N)
            for name, law in LAWS.items():
                ideal.cells[name, beta, N] = stopped(wide, law.draw(beta, N, draws), wide.stop())
    ratios, excess = table.pooled("ratio"), table.pooled("excess")
    figures = {
        "rate": line_panels("The stopping rule on kernels with polynomial decay, rough truths", _by_size(table, ideal)),
        "truths": line_panels(
            "What the rule cannot know: how the truth spreads over frequencies", _by_law(ratios, excess)
        ),
    }
    data = {
        "N": sizes,
        "T_over_best": ratios,
        "error_over_least": excess,
        "T_over_best_by_norm": moved,
        "slopes": {law: {beta: table.slope(law, beta) for beta in BETAS} for law in LAWS},
        "ideal_N": WIDE,
        "ideal_T_over_best": {law: {b: ideal.medians("ratio", law, b) for b in BETAS} for law in LAWS},
    }
    return context.result([*_rates(table, ideal), *_nearness(ratios, excess, moved)], figures, data)


def _rate(beta: float) -> float:
    return -2 * beta / (2 * beta + 1)


def _rates(table: Table, ideal: Table) -> list[Check]:
    """Not for the hardest truths with beta = 3 in federations: they have one or two frequencies there."""
    return [
        near(f"exponent of N in the error at T, {law}, beta = {b:g}{where}", by.slope(law, b), _rate(b), relative=0.15)
        for by, where in ((table, ""), (ideal, ", N to a million"))
        for law in ("rough", "hardest at each N")
        for b in BETAS
        if (law, where, b) != ("hardest at each N", "", 3.0)
    ]


def _nearness(
    ratios: dict[str, dict[float, float]], excess: dict[str, dict[float, float]], moved: dict[str, float]
) -> list[Check]:
    """Of median ratios."""
    wanted = {f"rough, beta = {beta:g}": ratios["rough"][beta] for beta in BETAS}
    wanted |= {f"hardest at each N, beta = {beta:g}": ratios["hardest at each N"][beta] for beta in BETAS[:3]}
    wanted |= {f"rough, {case}": ratio for case, ratio in moved.items() if not case.endswith("given 1")}
    worst = max(excess[law][beta] for law in ("rough", "rough, Gaussian", "hardest at each N") for beta in BETAS)
    return [
        *(at_least(f"T and the best round, smaller over larger: {a}", min(b, 1 / b), 0.5) for a, b in wanted.items()),
        at_most("error at T over the least error, worst median of rough and hardest truths", worst, 1.25),
    ]


def _by_size(table: Table, ideal: Table) -> list[LinePanel]:
    few, many = np.array(table.sizes, dtype=np.float64), np.array(ideal.sizes, dtype=np.float64)
    errors = {f"beta = {b:g}": table.medians("error", "rough", b) * (few / SIGMA**2) ** -_rate(b) for b in BETAS}
    ratios = {f"beta = {b:g}": table.medians("ratio", "rough", b) for b in BETAS}
    wide = {f"beta = {b:g}": ideal.medians("ratio", "rough", b) for b in BETAS}
    return [
        LinePanel("error at T over the minimax rate", "samples N", few, errors, across_scale="log", from_zero=True),
        LinePanel("T over the best round, federations", "samples N", few, ratios, "log", "log", levels=(0.5, 2.0)),
        LinePanel("the same, ideal design", "samples N", many, wide, "log", "log", levels=(0.5, 2.0)),
    ]


def _by_law(ratios: dict[str, dict[float, float]], excess: dict[str, dict[float, float]]) -> list[LinePanel]:
    betas = np.array(BETAS)
    return [
        LinePanel(
            name,
            "beta",
            betas,
            {law: np.array([by[b] for b in BETAS]) for law, by in values.items()},
            "log",
            levels=levels,
        )
        for name, values, levels in (
            ("T over the best round, median", ratios, (0.5, 2.0)),
            ("error at T over the least error, median", excess, (1.0,)),
        )
    ]

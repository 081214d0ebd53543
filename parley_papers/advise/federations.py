"""Is the advice good? Simulated federations of known truth, judged by rounds or megabytes until a target.

Thirty whose results have shaped the advisor, and thirty that it has never seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from parley_papers.advise.judge import Judged, judge
from parley_papers.figures.advice import factors_figure
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, claims, holds, study
from parley_papers.spread import spread

SEEDS: dict[Scale, tuple[int, ...]] = {"smoke": (105,), "cpu": tuple(range(30))}
"""Those that are judged; smoke takes one of the seeds for development."""
FRESH: dict[Scale, tuple[int, ...]] = {"smoke": (106,), "cpu": tuple(range(30, 60))}
"""Nothing was developed, chosen or mended with these in sight."""
WITHIN, SHARE = 2.0, 0.75
"""Without a pilot: at most so many times the best of the grid, for so many of the federations; and never the worst."""
PILOT_WITHIN, PILOT_SHARE = 1.15, 0.8
"""With a pilot."""
QUANTILES = (0.25, 0.5, 0.75, 0.9, 1.0)


@study(
    "advise/federations",
    scales={"smoke": "one federation for development, part of the grid", "cpu": "seeds 0-29, the whole grid"},
)
def federations(scale: Scale, context: StudyContext) -> StudyResult:
    """Advised settings against the best of a grid of methods and settings on simulated federations of known truth."""
    return _judged(SEEDS, scale, context)


@study(
    "advise/fresh",
    scales={"smoke": "one federation for development, part of the grid", "cpu": "seeds 30-59, the whole grid"},
)
def fresh(scale: Scale, context: StudyContext) -> StudyResult:
    """The same on federations that nobody looked at while the advisor was made."""
    return _judged(FRESH, scale, context)


def _judged(seeds: Mapping[Scale, tuple[int, ...]], scale: Scale, context: StudyContext) -> StudyResult:
    work = _smoke if scale == "smoke" else judge
    return summarised(spread(work, seeds[scale], context, "federations"), scale, context)


def _smoke(seed: int) -> Judged:
    return judge(seed, every=10)


def summarised(judged: Sequence[Judged], scale: Scale, context: StudyContext) -> StudyResult:
    """The checks, the figure and the numbers."""
    plain, tried = (np.array([getattr(problem, name) for problem in judged]) for name in ("factor", "pilot_factor"))
    checks: list[Check] = [
        holds(
            "federations whose target the grid reaches",
            all(np.isfinite(problem.best) for problem in judged),
            sum(np.isfinite(problem.best) for problem in judged),
            len(judged),
        )
    ]
    checks += claims(
        [
            at_least(f"without a pilot: share within {WITHIN:g}x of the best", float((plain <= WITHIN).mean()), SHARE),
            at_most(
                "without a pilot: federations where it is the worst", sum(problem.is_worst for problem in judged), 0
            ),
            at_least(
                f"with a pilot: share within {PILOT_WITHIN:g}x of the best",
                float((tried <= PILOT_WITHIN).mean()),
                PILOT_SHARE,
            ),
            at_most(
                "rounds of the pilot over the budget's, at most", max(problem.pilot_share for problem in judged), 0.5
            ),
        ],
        scale,
    )
    spread_of = {"without_pilot": plain, "with_pilot": tried}
    data = {
        "quantiles": QUANTILES,
        **{name: np.quantile(factors, QUANTILES, method="higher") for name, factors in spread_of.items()},
        "federations": [problem.plain() for problem in judged],
    }
    drawn = factors_figure({"without a pilot": plain, "with a pilot": tried}, [problem.seed for problem in judged])
    return context.result(checks, {"factors": drawn}, data)

"""Paper 004 on CIFAR-100, the least noisy of the authors' comparisons, run past the step where their curves cross.

The authors' recipe on pictures of 16x16 (scale cpu) or 32x32 (paper). Arms: FedAvg with tau = 5, FedALS with tau = 5
and alpha = 10, and FedAvg with tau = 50, which sends as much as FedALS. Each takes the better of two rates by a whole
run with a seed of its own on 20 held-out training samples of each class, at the authors' moment with averaged
statistics; a choice after a shorter run would punish FedALS, which rises late. Then seeds 0 to 2, paired, each with an
initial model of its own. A result is the mean of the ten evaluations up to step 7000.

What follows from the results, written before any of them was known. An interval is the 95% interval (Student's t) of
FedALS's result less a rival's, seed by seed, with statistics as averaged; those re-estimated are shown beside them and
decide nothing.

    reproduced   all four intervals (two rivals, two moments) lie above 0, on pictures of 32x32
    in part      the same on smaller pictures; or an interval against FedAvg with tau = 5 lies above 0, at either moment
    not          neither, past the authors' crossing, and both intervals against FedAvg with tau = 5 lie below half of
                 the authors' gain there
    undecided    anything else

If the verdict after 7000 steps is `undecided`, all nine runs go on to step 10,000, once, and the verdict is taken
there. A trial that diverges counts as accuracy 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import parley as pl
from parley_papers.figures.accuracy_ladder import MeanRow, accuracy_ladder
from parley_papers.figures.training_curves import ArmCurve, training_curves
from parley_papers.gholami2025.authors_curves import CIFAR100, CIFAR100_CROSSING, CIFAR100_GAIN, LATE, authors_curve
from parley_papers.gholami2025.authors_recipe import (
    LENGTHS,
    MOMENTS,
    STATISTICS,
    Gains,
    Length,
    Moments,
    SmokeMoments,
    authors_arm,
    by_seed,
    gains_over,
    result,
    results,
    sorted_images,
)
from parley_papers.harness import Scale, StudyContext, StudyResult, at_least, claims, holds, study
from parley_papers.training_problem import Recipe
from parley_papers.trials import Arm, ArmRun, having_rate, tuned

NEAR, EQUAL_TRAFFIC = "FedAvg, tau = 5", "FedAvg, tau = 50"
RIVALS = (NEAR, EQUAL_TRAFFIC)
FEDALS = "FedALS, tau = 5, alpha = 10"
_WORDS: dict[Scale, str] = {
    "smoke": "digits, 8 steps",
    "cpu": "CIFAR-100 at 16x16, 7000 steps (undecided: 10,000), 2 rates, 3 seeds; 5 hours",
    "paper": "CIFAR-100 at 32x32, otherwise the same; 20 hours",
}


@study("004/cifar100", scales=_WORDS)
def cifar100(scale: Scale, context: StudyContext) -> StudyResult:
    """Run past the crossing of the authors' curves, FedALS is above FedAvg with tau = 5 and with tau = 50."""
    length = LENGTHS[scale]
    short, end = _arms(scale, length), length.ends[0]
    rates = tuned(
        list(short.values()),
        length.rates,
        having_rate,
        lambda trial: result(trial, length, "authors", "averaged", length.ends[0]),
        context,
    )
    arms = [having_rate(arm, rates.best[name]) for name, arm in short.items()]
    trials = by_seed(arms, length.seeds, context)
    gains = gains_over(RIVALS, FEDALS, trials, length, end, "averaged")
    outcome = first = verdict(gains, _half(end, scale), past=end > CIFAR100_CROSSING, full=scale == "paper")
    if first == "undecided":
        end = length.ends[1]
        trials = by_seed([replace(arm, rounds=end) for arm in arms], length.seeds, context)
        gains = gains_over(RIVALS, FEDALS, trials, length, end, "averaged")
        outcome = verdict(gains, _half(end, scale), past=end > CIFAR100_CROSSING, full=scale == "paper")
    checks = [
        at_least(f"over {rival}, {MOMENTS[moment]}: lower end of the 95% interval", gain.value - gain.half, 0.0)
        for (rival, moment), gain in gains.items()
    ]
    checks.append(holds("verdict", outcome in ("reproduced", "in part"), outcome, "reproduced or in part"))
    measured = results(trials, length, end)
    least = min(min(values) for of_method in measured.values() for values in of_method.values())
    trains = at_least("least accuracy of any trial, none having diverged", least, 0.005)
    about = f"{arms[0].problem().about}; {len(length.seeds)} seeds, step {end}"
    data = {
        "verdict": outcome,
        "verdict after the first end": first,
        "steps": end,
        "rates": rates.plain(),
        "gains": {how: _plain(gains_over(RIVALS, FEDALS, trials, length, end, how)) for how in STATISTICS},
        "results": {
            name: {f"{moment}, {how}": values for (moment, how), values in of_method.items()}
            for name, of_method in measured.items()
        },
        "authors' gain, half of it": _half(end, scale),
        "trials": [trial.plain() for runs in trials.values() for trial in runs],
    }
    figures = {"accuracy": _ladder(trials, length, end, about), "curves": _curves(scale, trials, end, about)}
    return context.result([trains, *claims(checks, scale)], figures, data)


def verdict(gains: Gains, half_gain: float, *, past: bool, full: bool, rival: str = NEAR) -> str:
    """What the intervals say; see the top.

    `past`: the authors' crossing lies behind; `full`: pictures of 32x32; `rival`: the one with the same tau.
    """
    above = {which: gain.value - gain.half > 0 for which, gain in gains.items()}
    near = [which for which in gains if which[0] == rival]
    if all(above.values()):
        return "reproduced" if full else "in part"
    if any(above[which] for which in near):
        return "in part"
    if past and all(gains[which].value + gains[which].half < half_gain for which in near):
        return "not"
    return "undecided"


def _arms(scale: Scale, length: Length) -> dict[str, Arm]:
    name, side = ("digits", 8) if scale == "smoke" else ("cifar100", 16 if scale == "cpu" else 32)
    problem, few, many = Recipe(sorted_images, (name, side)), length.tau, length.tau * length.alpha
    periods = {NEAR: (few, few), FEDALS: (few, many), EQUAL_TRAFFIC: (many, many)}
    moments = SmokeMoments if scale == "smoke" else Moments
    return {arm: authors_arm(arm, problem, *of_arm, moments) for arm, of_arm in periods.items()}


def _half(end: int, scale: Scale) -> float:
    return CIFAR100_GAIN[end] / 2 if scale != "smoke" else 0.0


def _plain(gains: Gains) -> dict[str, Any]:
    return {f"over {rival}, {MOMENTS[moment]}": gain.plain() for (rival, moment), gain in gains.items()}


def _ladder(trials: Mapping[str, list[ArmRun]], length: Length, end: int, about: str) -> Any:
    measured = results(trials, length, end)
    rows = [
        MeanRow(f"{name.replace(', ', chr(10), 1)}\n{how}", pl.report.SeedMean.of(measured[name]["authors", how]))
        for how in STATISTICS
        for name in trials
    ]
    return accuracy_ladder(rows, "Test accuracy, statistics averaged and re-estimated", "", about, joined=False)


def _curves(scale: Scale, trials: Mapping[str, list[ArmRun]], end: int, about: str) -> Any:
    ours = [ArmCurve(name, runs, i) for i, (name, runs) in enumerate(trials.items())]
    panels = {"Here": ours}
    if scale != "smoke":
        panels["The authors, 32x32"] = [
            ArmCurve(name, [authors_curve(CIFAR100, name, LATE, end)], i)
            for i, name in enumerate(trials)
            if name in CIFAR100
        ]
    return training_curves(panels, "accuracy", f"{about}; a round is a step")

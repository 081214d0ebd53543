"""Two more pairs of FedAvg and FedALS with the authors' recipe at 16x16: longer periods, and another normalisation.

`004/tau50`: CIFAR-10 with tau = 50, where the authors' gain is largest against its noise: 16.8 points at step 6000.
`004/groupnorm`: CIFAR-100 with GroupNorm in place of BatchNorm, because averaged statistics may be the whole effect.
Rates are chosen and intervals judged as in `004/cifar100`, with one rival: `in part` if an interval lies above 0 at
either moment, `not` if both lie below half of the authors' gain, else `undecided`.
"""

from __future__ import annotations

from parley_papers.figures.training_curves import ArmCurve, training_curves
from parley_papers.gholami2025.authors_curves import CIFAR10_50_GAIN, CIFAR100_GAIN
from parley_papers.gholami2025.authors_recipe import (
    LENGTHS,
    MOMENTS,
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
from parley_papers.gholami2025.cifar100 import verdict
from parley_papers.harness import Scale, StudyContext, StudyResult, at_least, claims, holds, study
from parley_papers.training_problem import Recipe
from parley_papers.trials import having_rate, tuned


class LongMoments(Moments):
    length = Length(50, 10, (6000, 6000), 100, 10, 500, (1 / 4, 1.0), (0, 1, 2))


_CIFAR100_END = LENGTHS["cpu"].ends[0]


@study("004/tau50", scales={"smoke": "digits, 8 steps", "cpu": "CIFAR-10 at 16x16, 6000 steps, 3 seeds; 4 hours"})
def tau50(scale: Scale, context: StudyContext) -> StudyResult:
    """With 50 local steps FedALS is above FedAvg after 6000 steps."""
    smoke = scale == "smoke"
    problem = Recipe(sorted_images, ("digits", 8) if smoke else ("cifar10", 16))
    return _pair(problem, SmokeMoments if smoke else LongMoments, CIFAR10_50_GAIN, context)


@study("004/groupnorm", scales={"smoke": "digits, 8 steps", "cpu": "CIFAR-100 at 16x16, 7000 steps, 3 seeds; 4 hours"})
def groupnorm(scale: Scale, context: StudyContext) -> StudyResult:
    """Without running statistics FedALS is above FedAvg as it is with them."""
    smoke = scale == "smoke"
    problem = Recipe(sorted_images, ("digits", 8, "group") if smoke else ("cifar100", 16, "group"))
    return _pair(problem, SmokeMoments if smoke else Moments, CIFAR100_GAIN[_CIFAR100_END], context)


def _pair(problem: Recipe, moments: type[Moments], gain: float, context: StudyContext) -> StudyResult:
    length = moments.length
    end, few, many = length.ends[0], length.tau, length.tau * length.alpha
    rival, ours = f"FedAvg, tau = {few}", f"FedALS, tau = {few}, alpha = {length.alpha}"
    arms = [authors_arm(rival, problem, few, few, moments), authors_arm(ours, problem, few, many, moments)]
    rates = tuned(
        arms, length.rates, having_rate, lambda trial: result(trial, length, "authors", "averaged", end), context
    )
    trials = by_seed([having_rate(arm, rates.best[arm.name]) for arm in arms], length.seeds, context)
    gains = gains_over([rival], ours, trials, length, end, "averaged")
    outcome = verdict(gains, gain / 2, rival=rival, past=True, full=False)
    measured = results(trials, length, end)
    least = min(min(values) for gain_or_values in measured.values() for values in gain_or_values.values())
    checks = [
        at_least(
            f"over {rival}, {MOMENTS[moment]}: lower end of the 95% interval",
            gain_or_values.value - gain_or_values.half,
            0.0,
        )
        for (_, moment), gain_or_values in gains.items()
    ]
    checks.append(holds("verdict", outcome == "in part", outcome, "in part"))
    curves = [ArmCurve(name, runs, i) for i, (name, runs) in enumerate(trials.items())]
    figure = training_curves({"Test accuracy": curves}, "accuracy", f"{problem().about}; a round is a step")
    data = {
        "verdict": outcome,
        "steps": end,
        "rates": rates.plain(),
        "authors' gain": gain,
        "gains": {MOMENTS[moment]: gain_or_values.plain() for (_, moment), gain_or_values in gains.items()},
        "results": {
            name: {f"{m}, {s}": v for (m, s), v in gain_or_values.items()} for name, gain_or_values in measured.items()
        },
        "trials": [trial.plain() for runs in trials.values() for trial in runs],
    }
    trains = at_least("least accuracy of any trial, none having diverged", least, 0.005)
    return context.result([trains, *claims(checks, context.scale)], {"curves": figure}, data)

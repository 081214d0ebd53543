"""Paper 002, Figure 1: FedAvg and FedDyn started from one step of FFGB-Distill, and from random weights.

That step is the first model that a client transmits, so after n models a warm run has done n - 1 rounds of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import parley as pl
from parley_papers.figures.warm_starts import WarmCurve, warm_starts
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, claims, holds, near, study
from parley_papers.shen2022.picture_arms import AVG, DYN, FFGB, SIZES, by_models, chosen, warm
from parley_papers.shen2022.picture_pairs import PAIRS, cifar100_pairs, pairs
from parley_papers.shen2022.table2 import TARGETS
from parley_papers.trials import ArmRun, trained

MODELS = 10
"""The lift is a mean over the first so many transmitted models."""


@study(
    "002/fig1",
    scales={
        "smoke": "digits by halves, 3 rounds",
        "cpu": "CIFAR-10 at 8x8 by halves, 100 clients, s = 0.1, an MLP of 100 units, 10 rounds, 3 seeds",
        "paper": "CIFAR-10 and CIFAR-100, s = 0.1, the paper's network, 100 rounds, 3 seeds",
    },
)
def fig1(scale: Scale, context: StudyContext) -> StudyResult:
    """One step of FFGB-Distill as a warm start lifts FedAvg and FedDyn in their first rounds."""
    return _measured(scale, context, pairs(scale) if scale != "paper" else list(PAIRS)[:2])


@study(
    "002/fig1-cifar100",
    scales={
        "smoke": "digits by halves, 3 rounds",
        "cpu": "CIFAR-100 at 8x8, CIFAR-10 public, 100 clients, s = 0.1, an MLP of 100 units, 10 rounds, 3 seeds",
    },
)
def fig1_cifar100(scale: Scale, context: StudyContext) -> StudyResult:
    """The same on CIFAR-100."""
    return _measured(scale, context, cifar100_pairs(scale))


def _measured(scale: Scale, context: StudyContext, shown: Sequence[str]) -> StudyResult:
    checks: list[Check] = []
    panels, data, about = {}, {}, ""
    for pair in shown:
        arms = chosen((FFGB, DYN, AVG), pair, 0.1, max(TARGETS[pair, 0.1]), context)
        names = {name: f"{name} after one step of {FFGB}" for name in (AVG, DYN)}
        begun = [warm(arms[name], arms[FFGB], title) for name, title in names.items()]
        trials = trained([arms[AVG], arms[DYN], *begun], SIZES[scale].seeds, context)
        about = about or arms[AVG].problem().about
        for name, title in names.items():
            first = trials[title][0].metrics["up/bytes"]
            checks.append(
                near(f"{pair}: bytes of the step before {name} over a round's", first[0] / first[1], 1.0, relative=0.02)
            )
            lift = pl.report.SeedMean.of([_lift(*both) for both in zip(trials[title], trials[name], strict=True)])
            low = lift.value - lift.half
            words = f"{lift.value:+.4f}, 95% interval from {low:+.4f}"
            checks += claims(
                [holds(f"{pair}: {name} is lifted by one step of {FFGB}", low > 0, words, "0", ">")], scale
            )
            data[f"{pair}, {name}"] = {"lift": lift.plain(), "models": MODELS}
        data[pair] = {name: [run.plain() for run in runs] for name, runs in trials.items()}
        panels[pair] = [
            WarmCurve(title, [by_models(run) for run in trials[title]], colour, warm=title not in (AVG, DYN))
            for colour, name in enumerate((AVG, DYN))
            for title in (name, names[name])
        ]
    return context.result(checks, {"accuracy": warm_starts(panels, about)}, data)


def _lift(begun: ArmRun, plain: ArmRun) -> float:
    """The mean of the difference after 1, 2, ... transmitted models; what diverged counts as 0."""
    a, b = (np.nan_to_num(by_models(trial))[:MODELS] for trial in (begun, plain))
    return float((a - b[: len(a)]).mean())

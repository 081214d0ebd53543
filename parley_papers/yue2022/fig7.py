"""Figure 7 and beyond: CIFAR-10, Dir(.1), with a small convolutional network in place of the paper's perceptron."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import parley as pl
from parley_papers.figures.training_curves import training_curves
from parley_papers.harness import Scale, StudyContext, StudyResult, at_least, claims, study
from parley_papers.yue2022.arms import SIZES, Method, arm, chosen, curves, mean_at, numbers, trains, tuned_trials

BETA = 0.1
"""Convolutions make kernels and products more expensive: 20 samples a client and round."""
FULL = "NTK-FL, full kernel"
_FULL: dict[Scale, dict[str, Any]] = {
    "smoke": {"share": 0.5, "times": (50, 100)},
    "cpu": {"share": 0.2, "times": (200, 400, 800, 1600)},
}
"""Of the exact kernel over samples and outputs; set on the seed and the samples for choosing settings, like rates."""
BASELINES: tuple[Method, ...] = ("FedAvg", "DataShare", "centralised")


@study(
    "003/fig7",
    scales={
        "smoke": "digits, two convolutions, 2 rounds",
        "cpu": "CIFAR-10 at 16x16, three convolutions, 300 clients, 20 rounds, beta = .1 and .2, seeds 0-2",
    },
)
def fig7(scale: Scale, context: StudyContext) -> StudyResult:
    """NTK-FL trains a convolutional network with the structured kernel, ahead of FedAvg."""
    rounds = 2 if scale == "smoke" else 20
    arms = [arm(name, scale, "cifar", rounds=rounds) for name in BASELINES]
    settings = chosen(arms, context, SIZES[scale].steps[:1])
    ours = arm("NTK-FL", scale, "cifar", beta=BETA, rounds=rounds)
    full = replace(ours, name=FULL, algorithm=pl.NtkFL(kernel="full", **_FULL[scale]))
    trials = tuned_trials([*arms, ours, full], context, settings)
    end = {name: mean_at(runs, rounds) for name, runs in trials.items()}
    checks = [trains(trials)]
    checks += claims(
        [
            at_least(f"{method} over {name}", end[method].value - end[name].value, 0)
            for method in (FULL, "NTK-FL")
            for name in ("FedAvg", "DataShare")
        ],
        scale,
    )
    shares = f"beta = {BETA:g}, full kernel {_FULL[scale]['share']:g}"
    about = f"{arms[0].problem().about}; NTK-FL: {shares}; FedNova is FedAvg here"
    figure = training_curves({"Figure 7": curves(trials)}, "accuracy", about)
    data = numbers(trials, settings) | {"last round": {name: mean.plain() for name, mean in end.items()}}
    return context.result(checks, {"curves": figure}, data)

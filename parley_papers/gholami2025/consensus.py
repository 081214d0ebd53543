"""Paper 004, Figure 1: how far clients' copies of a layer are apart, per parameter, under FedAvg with tau = 50.

`004/fig1-resnet20` is the figure in the paper's network with the authors' recipe, for whose code a layer's running
statistics are among its parameters; it is measured with and without them. The rate is eta = 1/4, tuned by nobody.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.consensus import consensus_figure
from parley_papers.gholami2025.authors_recipe import OPTIONS, sorted_images
from parley_papers.gholami2025.image_arms import SIZES, TAU, compared, image_arm
from parley_papers.gholami2025.image_problem import data_sets
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, claims, study
from parley_papers.training_problem import Recipe
from parley_papers.trials import Arm, trained

_WORDS: dict[Scale, str] = {
    "smoke": "digits",
    "cpu": "CIFAR-10 at 16x16, a CNN of 7 layers, 1500 steps, 3 seeds",
    "paper": "CIFAR-10, ResNet-20, 20,000 steps, 20 seeds",
}


@study("004/fig1", scales=_WORDS)
def fig1(scale: Scale, context: StudyContext) -> StudyResult:
    """Where clients hold different classes, their copies of early layers stay closer than those of late ones."""
    tau = SIZES[scale].alpha * TAU
    arm = image_arm("FedAvg", scale, data_sets(scale, "cifar10")[0], tau=tau)
    trials = compared([arm], context)[arm.name]
    problem = arm.problem()
    layers = list(pl.layer_groups(pl.make_task(problem.federation, problem.model, seed=0).network))
    # [seed, layer, round]; the beginning, where every layer still moves fast, is left out of the means.
    distances = np.array([[trial.metrics[f"consensus/{layer}"] for layer in layers] for trial in trials])
    late_rounds = distances[:, :, distances.shape[2] // 2 :].mean(axis=2)
    checks = [*_claims(late_rounds), *claims([_without_last(late_rounds)], scale)]
    data = {
        "layers": layers,
        "distance by seed, layer, round": distances,
        "mean over the second half": late_rounds.mean(axis=0),
        "trials": [trial.plain() for trial in trials],
    }
    figure = consensus_figure(layers, distances, tau, f"FedAvg, {problem.about}")
    return context.result(checks, {"consensus": figure}, data)


STEPS: dict[Scale, int] = {"smoke": 4, "cpu": 1500}


@study(
    "004/fig1-resnet20",
    scales={"smoke": "digits, 4 steps", "cpu": "CIFAR-10 at 16x16, ResNet-20, 1500 steps, 3 seeds; 20 minutes"},
)
def fig1_resnet20(scale: Scale, context: StudyContext) -> StudyResult:
    """In ResNet-20, with the layers' running statistics or without, early layers stay closer than late ones."""
    tau = 2 if scale == "smoke" else 50
    recipe = Recipe(sorted_images, ("digits", 8) if scale == "smoke" else ("cifar10", 16))
    method = pl.FedALS(alpha=1, lr=1 / 4, steps=tau, batch=recipe().batch, schedule=pl.Inverse(), options=OPTIONS)
    rounds = STEPS[scale] // tau
    arm = Arm(
        "FedAvg",
        recipe,
        method,
        rounds,
        rounds,
        runtime="inline",
        weights="size",
        listeners=(pl.ConsensusDistance, pl.ConsensusWithStatistics),
        metrics=("consensus",),
    )
    trials = trained([arm], (0,) if scale == "smoke" else (0, 1, 2), context)[arm.name]
    layers = list(pl.layer_groups(pl.make_task(recipe().federation, recipe().model, seed=0).network))
    checks: list[Check] = [at_least("layers", len(layers), 20)]
    figures, data = {}, {"layers": layers, "trials": [trial.plain() for trial in trials]}
    for words, name in {"parameters": "consensus", "statistics included": "consensus-with-statistics"}.items():
        distances = np.array([[trial.metrics[f"{name}/{layer}"] for layer in layers] for trial in trials])
        late_rounds = distances[:, :, distances.shape[2] // 2 :].mean(axis=2)
        judged = [*_claims(late_rounds), _without_last(late_rounds)]
        checks += claims([replace(check, name=f"{words}: {check.name}") for check in judged], scale)
        figures[name] = consensus_figure(layers, distances, tau, f"FedAvg, {recipe().about}, {words}")
        data[words] = {"distance by seed, layer, round": distances, "mean over the second half": late_rounds.mean(0)}
    return context.result(checks, figures, data)


def _claims(distances: Array) -> list[Check]:
    """Of the distances [seed, layer]; every seed has to agree."""
    last, others = distances[:, -1], distances[:, :-1]
    return [
        at_least("late half of the layers over the early half", _late_over_early(distances), 1.0),
        at_least("last layer over the mean of the others", float((last / others.mean(axis=1)).min()), 1.0),
    ]


def _without_last(distances: Array) -> Check:
    """Added when the claims had been seen to hold by the last layer alone; the network of smoke has too few others."""
    return at_least("without the last layer: late half over the early half", _late_over_early(distances[:, :-1]), 1.0)


def _late_over_early(distances: Array) -> float:
    half = distances.shape[1] // 2
    return float((distances[:, -half:].mean(axis=1) / distances[:, :half].mean(axis=1)).min())

"""Paper 004, Figure 1: how far clients' copies of a layer are apart, per parameter, under FedAvg with tau = 50."""

from __future__ import annotations

import numpy as np

from parley.engine.observers import layer_groups
from parley.report.papers.consensus import consensus_figure
from parley.studies.harness import Check, Scale, StudyContext, StudyResult, at_least, claims, study
from parley.studies.paper004.image_arms import SIZES, TAU, compared, image_arm
from parley.studies.paper004.image_problem import data_sets
from parley.study.train import make_task
from parley.theory.theta import Array

_WORDS: dict[Scale, str] = {
    "smoke": "digits", "cpu": "CIFAR-10 at 16x16, a CNN of 7 layers, 1500 steps, 3 seeds",
    "paper": "CIFAR-10, ResNet-20, 20,000 steps, 20 seeds",
}  # fmt: skip


@study("004/fig1", scales=_WORDS)
def fig1(scale: Scale, context: StudyContext) -> StudyResult:
    """Where clients hold different classes, their copies of early layers stay closer than those of late ones."""
    tau = SIZES[scale].alpha * TAU
    arm = image_arm("FedAvg", scale, data_sets(scale, "cifar10")[0], tau=tau)
    trials = compared([arm], context)[arm.name]
    problem = arm.problem()
    layers = list(layer_groups(make_task(problem.federation, problem.model, seed=0).network))
    # [seed, layer, round]; the beginning, where every layer still moves fast, is left out of the means.
    distances = np.array([[trial.metrics[f"consensus/{layer}"] for layer in layers] for trial in trials])
    late_rounds = distances[:, :, distances.shape[2] // 2 :].mean(axis=2)
    checks = [*_claims(late_rounds), *claims([_without_last(late_rounds)], scale)]
    data = {
        "layers": layers, "distance by seed, layer, round": distances,
        "mean over the second half": late_rounds.mean(axis=0), "trials": [trial.plain() for trial in trials],
    }  # fmt: skip
    figure = consensus_figure(layers, distances, tau, f"FedAvg, {problem.about}")
    return context.result(checks, {"consensus": figure}, data)


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

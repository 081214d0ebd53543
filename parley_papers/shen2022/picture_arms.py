"""Paper 002's methods on pictures (Section 6), each with one of three settings, chosen alike for all.

FFGB-Distill's is its step in the space of functions, that of the others the step size of their local SGD. FFGB-Distill
and FedAvg-Distill make as many local passes, FedDyn and FedAvg half as many or fewer, as in the paper. All gradients
are clipped to norm 5. A setting is chosen by how few models it takes to the target, then by the mean accuracy, with a
seed and on samples that no result uses. The two that distil cost most and stop at the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.harness import Scale, StudyContext
from parley_papers.shen2022.picture_pairs import HUNDRED, picture_pair
from parley_papers.training_problem import Recipe
from parley_papers.trials import Arm, ArmRun, tuned

FFGB, DISTILL, DYN, AVG = "FFGB-Distill", "FedAvg-Distill", "FedDyn", "FedAvg"
METHODS = (FFGB, DISTILL, DYN, AVG)
CLIP = 5.0


@dataclass(frozen=True)
class Size:
    """How much is trained at a scale."""

    rounds: int
    epochs: int
    """Local passes of the two that distil."""
    plain_epochs: int
    """Local passes of FedDyn and FedAvg."""
    student_epochs: int
    student_batch: int
    steps: tuple[float, ...]
    """FFGB-Distill's settings (eta)."""
    rates: tuple[float, ...]
    """The others' settings."""
    seeds: tuple[int, ...]


SIZES: dict[Scale, Size] = {
    "smoke": Size(3, 3, 2, 3, 100, (5.0,), (0.1,), (0,)),
    "cpu": Size(10, 20, 10, 10, 200, (2.5, 5.0, 10.0), (0.05, 0.1, 0.2), (0, 1, 2)),
    "paper": Size(100, 100, 10, 100, 64, (5.0, 10.0, 20.0), (0.01, 0.05, 0.1), (0, 1, 2)),
}

HUNDREDS = ((20.0, 50.0, 100.0), (0.1, 0.2, 0.4))
"""Settings on CIFAR-100 at scale cpu: of so many classes a client has few, and steps of 10 or less hardly move."""


def grid(scale: Scale, pair: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What FFGB-Distill's step and the others' rates are chosen from."""
    return HUNDREDS if pair == HUNDRED else (SIZES[scale].steps, SIZES[scale].rates)


def picture_arm(method: str, scale: Scale, pair: str, s: float, target: float) -> Arm:
    """A method on a pair, without its setting."""
    size = SIZES[scale]
    student: dict[str, Any] = {"student_epochs": size.student_epochs, "student_batch": size.student_batch}
    local: dict[str, Any] = {"batch": 64, "clip": CLIP}
    algorithm = {
        FFGB: pl.FFGBDistill(learner=pl.Network(epochs=size.epochs, clip=CLIP), **student),
        DISTILL: pl.FedAvgDistill(epochs=size.epochs, **local, **student),
        DYN: pl.FedDyn(epochs=size.plain_epochs, alpha=0.01, **local),
        AVG: pl.FedAvg(epochs=size.plain_epochs, **local),
    }[method]
    # Weak learners are fitted client by client; convolutions run best so.
    runtime = "inline" if method == FFGB or scale == "paper" else "stacked"
    return Arm(
        method,
        Recipe(picture_pair, (pair, s)),
        algorithm,
        size.rounds,
        1,
        runtime=runtime,
        metrics=("up/bytes", "down/bytes"),
        target=target if method in (FFGB, DISTILL) else None,
    )


def chosen(methods: Sequence[str], pair: str, s: float, target: float, context: StudyContext) -> dict[str, Arm]:
    """The arms with the settings that each was given; all have as many to choose from."""
    steps, rates = grid(context.scale, pair)

    def score(trial: ArmRun) -> float:
        return float(np.nan_to_num(trial.accuracy[1:]).mean()) - transmitted(trial, target)

    def having(arm: Arm, index: int) -> Arm:
        return arm.having(lr=(steps if arm.name == FFGB else rates)[index])

    arms = [picture_arm(method, context.scale, pair, s, target) for method in methods]
    indices = range(len(rates))
    best = tuned(arms, indices, having, score, context).best if len(indices) > 1 else dict.fromkeys(methods, 0)
    return {arm.name: having(arm, best[arm.name]) for arm in arms}


def warm(arm: Arm, first: Arm, name: str) -> Arm:
    """The arm started from one round of another; it trains one round less, so both transmit as many models."""
    return replace(arm, name=name, rounds=arm.rounds - 1, init_from=pl.WarmStart(algorithm=first.algorithm, rounds=1))


def transmitted(trial: ArmRun, target: float) -> int:
    """Models that a client has sent when the accuracy first reaches the target; one more than there were, if never."""
    reached = np.flatnonzero(np.nan_to_num(trial.accuracy[1:]) >= target)
    return int(reached[0]) + 1 if len(reached) else trial.arm.rounds + 1


def by_models(trial: ArmRun) -> Array:
    """The accuracy after 1, 2, ... transmitted models; a warm start is the first of them."""
    return trial.accuracy if trial.arm.init_from is not None else trial.accuracy[1:]

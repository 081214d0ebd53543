"""Paper 004's methods on images, with rates chosen from one grid for all, and the parameters they send counted.

As in the paper momentum SGD (0.9, Nesterov, weight decay 1e-4) runs through the rounds at every client. FedAvg is
FedALS with alpha = 1, which is the same method exactly. Each arm gets the rate with the best result of a whole run,
with a seed and on samples that no result uses: the best of a grid of powers of two, which goes on where the best lies
at its end (Appendix E.3). Shorter runs would mislead: with batch normalisation FedAvg's accuracy falls again, the
sooner the larger the rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.gholami2025.image_problem import Network, five_client_images
from parley_papers.gholami2025.sent_entries import SentEntries
from parley_papers.harness import Scale, StudyContext
from parley_papers.training_problem import Recipe
from parley_papers.trials import Arm, ArmRun, tuned_and_trained

OPTIONS: dict[str, Any] = {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
TAU = 5


@dataclass(frozen=True)
class Size:
    """How much is trained at a scale; rounds have tau = 5 steps."""

    rounds: int
    iid: int
    """Rounds where data are iid: half, in Table 4."""
    rates: tuple[float, ...]
    every: int
    """Rounds between evaluations."""
    seeds: tuple[int, ...]
    alphas: tuple[int, ...]
    """All divide `rounds` and `period`, so that every arm has just averaged all at the rounds results are taken from.
    """
    alpha: int
    """The alpha of all tables but Table 2."""
    layers: tuple[int, ...]
    """Table 3's L, all but the one that means all layers."""
    layer: int
    """The L that corresponds to the paper's best, 16 of 20."""
    period: int
    """Results are means over the rounds that this divides ..."""
    last: int
    """... the last so many of them."""


FURTHER: dict[Scale, int] = {"smoke": 0, "cpu": 4, "paper": 8}
"""How often the grid may be widened for an arm."""
SIZES: dict[Scale, Size] = {
    "smoke": Size(20, 10, (1 / 16, 1 / 8), 5, (0,), (1, 2, 5), 2, (1, 2, 3), 2, 10, 1),
    "cpu": Size(
        300,
        200,
        tuple(2.0**k for k in range(-8, -4)),
        25,
        (0, 1, 2),
        (1, 5, 10, 25, 50, 100),
        10,
        (1, 3, 5, 6),
        5,
        100,
        2,
    ),
    "paper": Size(
        4000,
        2000,
        tuple(0.01 * 2.0**k for k in range(-4, 5)),
        100,
        tuple(range(20)),
        (1, 5, 10, 25, 50, 100),
        10,
        (0, 4, 8, 12, 16, 19),
        16,
        100,
        5,
    ),
}
RESNET: dict[Scale, Size] = {
    "smoke": replace(SIZES["smoke"], rounds=4, rates=(1 / 16,), every=2, alphas=(1, 2), period=4),
    "cpu": replace(SIZES["cpu"], rounds=120, rates=(1 / 64, 1 / 32), every=20, seeds=(0, 1), alphas=(1, 10), period=20),
}
"""Study `004/resnet20`: what two cores train in an hour or two; the two rates are all that is tried."""


def image_arm(
    name: str,
    scale: Scale,
    data: str,
    *,
    method: str = "fedals",
    alpha: int = 1,
    layers: int | None = None,
    iid: bool = False,
    tau: int = TAU,
    network: Network = "plain",
) -> Arm:
    """A method on a data set, without its rate.

    `method`: fedals (with alpha = 1 that is FedAvg), scaffold or fedals-scaffold. `layers`: how many are in phi, None
    for all but the last. Another tau takes as many steps in all as tau = 5 does, and its layers' consensus distance is
    measured.
    """
    size = RESNET[scale] if network == "resnet20" else SIZES[scale]
    problem = Recipe(five_client_images, (scale, data, iid, network))
    common: dict[str, Any] = {"steps": tau, "batch": problem().batch, "options": OPTIONS}
    algorithm: pl.Algorithm
    if method == "scaffold":
        algorithm = pl.Scaffold(keep=True, **common)
    else:
        kind = pl.FedALSScaffold if method == "fedals-scaffold" else pl.FedALS
        algorithm = kind(alpha=alpha, layers=layers, **common)
    listeners: tuple[type[pl.Listener], ...] = (SentEntries, pl.ConsensusDistance) if tau != TAU else (SentEntries,)
    rounds = size.iid if iid else size.rounds
    return Arm(
        name,
        problem,
        algorithm,
        max(rounds * TAU // tau, 1),
        max(size.every * TAU // tau, 1),
        runtime="inline" if scale == "paper" or network != "plain" else "stacked",
        listeners=listeners,
        metrics=("consensus/", "entries/"),
    )


def compared(
    arms: Sequence[Arm], context: StudyContext, size: Size | None = None, further: int | None = None
) -> dict[str, list[ArmRun]]:
    """The trials of every arm, with its best rate and all seeds; `size` and `further`: others than the scale's."""
    size = size or SIZES[context.scale]
    often = FURTHER[context.scale] if further is None else further
    return tuned_and_trained(arms, size.rates, lambda trial: final(trial, size), size.seeds, context, further=often)


def standard_rounds(trial: ArmRun) -> Array:
    """The evaluated rounds, in rounds of 5 steps whatever tau is."""
    tau: int = getattr(trial.arm.algorithm, "steps", TAU)
    return trial.rounds * (tau / TAU)


def final(trial: ArmRun, size: Size) -> float:
    """The mean accuracy over the last rounds in which every arm has just averaged all layers; 0 after divergence."""
    rounds = standard_rounds(trial)
    return float(np.nan_to_num(trial.accuracy[(rounds % size.period == 0) & (rounds > 0)][-size.last :]).mean())


def accuracies(
    trials: Mapping[str, Sequence[ArmRun]], context: StudyContext, size: Size | None = None
) -> dict[str, pl.report.SeedMean]:
    """Each arm's test accuracy at the end."""
    size = size or SIZES[context.scale]
    return {name: pl.report.SeedMean.of([final(trial, size) for trial in runs]) for name, runs in trials.items()}


def numbers(trials: Mapping[str, Sequence[ArmRun]], means: Mapping[str, pl.report.SeedMean]) -> dict[str, Any]:
    """For a study's data: every arm's accuracy and its trials."""
    return {
        "arms": [
            {"arm": name, "accuracy": means[name].plain(), "trials": [trial.plain() for trial in runs]}
            for name, runs in trials.items()
        ]
    }

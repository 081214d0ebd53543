"""Paper 003's methods on its clients, with Appendix A's grid of rates for all that have one.

FedAvg and DataShare take full local batches of 200; every one gets the best of the same rates and numbers of steps, by
a whole run with a seed and on samples that no result uses. All clients have as many samples and take as many steps
where labels are skewed, so FedNova is FedAvg there, to the last bit, and is not trained again. NTK-FL has the paper's
eta = .01 and is not tuned, but for its candidates of t at scale cpu, which lie where those samples have it choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import parley as pl
from parley_papers.figures.training_curves import ArmCurve
from parley_papers.harness import Check, Scale, StudyContext, holds
from parley_papers.training_problem import Recipe
from parley_papers.trials import Arm, ArmRun, trained, tuned
from parley_papers.yue2022.setting import SAMPLES, Images, clients

Method = Literal["FedAvg", "FedNova", "DataShare", "centralised", "NTK-FL"]
Setting = tuple[float, int]
"""A rate and a number of local steps."""
COSTS = ("up/", "down/", "seconds")
"""What trials keep besides accuracy and loss."""


@dataclass(frozen=True)
class Size:
    """How much is trained at a scale."""

    rounds: int
    every: int
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    steps: tuple[int, ...]
    alphas: tuple[float, ...]
    beta: float
    """The share of its samples that a client of NTK-FL uses in a round, where the full sample would take hours."""
    times: tuple[int, ...]
    """NTK-FL's candidates of t."""
    authors_times: tuple[int, ...] = (*range(100, 1001, 100), 1500, 2000)
    """Those of the authors' code."""


RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""Appendix A."""
SIZES: dict[Scale, Size] = {
    "smoke": Size(3, 1, (0,), (0.01, 0.1), (5,), (0.1, 0.5), 0.5, (100, 200), (100, 150, 200)),
    "cpu": Size(30, 2, (0, 1, 2), RATES, (10, 30), (0.1, 0.3, 0.5), 0.3, (100, 200, 400, 800)),
    "paper": Size(
        50,
        1,
        (0, 1, 2),
        RATES,
        (1, 3, 5, 7, 9, 10, 20, 30, 40, 50),
        (0.1, 0.2, 0.3, 0.4, 0.5),
        1.0,
        tuple(range(100, 2001, 100)),
    ),
}


@dataclass(frozen=True)
class SubsampledFedAvg(pl.FedAvg):
    """FedAvg whose clients train on a share of their samples, drawn afresh in every round, as CP-NTK-FL's do."""

    beta: float = 1.0
    """The share."""

    @pl.exchange(like=pl.FedAvg.client)
    def client(
        self, task: pl.Task, message: pl.Message, memory: pl.Memory, data: pl.Data, context: pl.Contexts
    ) -> pl.Reply:
        rows = context.key.fold("subsample").numpy().permutation(len(data))[: max(1, round(self.beta * len(data)))]
        return super().client(task, message, memory, pl.ClientData(data.x[rows], data.y[rows]), context)


def arm(
    method: Method,
    scale: Scale,
    images: Images = "fashion",
    alpha: float = 0.1,
    *,
    projected: int = 0,
    beta: float | None = None,
    name: str | None = None,
    rounds: int | None = None,
    target: float | None = None,
    every: int | None = None,
    authors: bool = False,
) -> Arm:
    """A method on the paper's clients, without its rate.

    `beta`: the share of its samples that a client uses; `authors`: on the authors' own clients, with their times.
    """
    size = SIZES[scale]
    problem = Recipe(clients, (scale, images, alpha, projected, method == "DataShare", "network", authors))
    algorithm: pl.Algorithm
    common: dict[str, Any] = {"steps": size.steps[0], "batch": SAMPLES}
    runtime = "stacked" if images != "cifar" else "inline"
    if method == "NTK-FL":
        algorithm, runtime = ntk_fl(scale, 1.0 if beta is None else beta, authors), "inline"
    elif method == "FedAvg" and beta is not None:
        algorithm, runtime = SubsampledFedAvg(beta=beta, **common), "inline"
    else:
        if images == "writers" and method in ("FedAvg", "FedNova"):
            # Writers have unequal numbers of samples: passes in small batches, so that steps are unequal too.
            common = {"epochs": _passes(size.steps[0]), "batch": 20}
        kinds: dict[str, type[pl.FedAvg]] = {"FedNova": pl.FedNova, "centralised": pl.Centralised}
        algorithm = kinds.get(method, pl.FedAvg)(**common)
    return Arm(
        name or method,
        problem,
        algorithm,
        rounds or size.rounds,
        every or size.every,
        runtime=runtime,
        metrics=COSTS,
        target=target,
    )


def ntk_fl(scale: Scale, beta: float, authors: bool = False) -> pl.NtkFL:
    """NTK-FL with cross-entropy and the paper's eta; few candidates of t, since every one travels to the clients."""
    return pl.NtkFL(lr=0.01, share=beta, times=times(scale, authors))


def times(scale: Scale, authors: bool) -> tuple[int, ...]:
    """NTK-FL's candidates of t: the authors' twelve, or ours."""
    return SIZES[scale].authors_times if authors else SIZES[scale].times


def set_to(arm: Arm, setting: Setting) -> Arm:
    """The arm with this rate and number of local steps, or a pass for ten of them."""
    lr, steps = setting
    passes = getattr(arm.algorithm, "epochs", None) is not None
    return arm.having(lr=lr, epochs=_passes(steps)) if passes else arm.having(lr=lr, steps=steps)


def _passes(steps: int) -> int:
    return max(1, steps // 10)


def chosen(arms: Sequence[Arm], context: StudyContext, steps: Sequence[int] | None = None) -> dict[str, Setting]:
    """The rate and the steps with which each arm ends best."""
    size = SIZES[context.scale]
    grid = [(rate, count) for rate in size.rates for count in (steps or size.steps)]
    return tuned(arms, grid, set_to, lambda trial: trial.last(0.2), context).best


def tuned_trials(
    arms: Sequence[Arm], context: StudyContext, settings: Mapping[str, Setting]
) -> dict[str, list[ArmRun]]:
    """All seeds of every arm; those named in `settings` with their setting."""
    ready = [set_to(arm, settings[arm.name]) if arm.name in settings else arm for arm in arms]
    return trained(ready, SIZES[context.scale].seeds, context)


def curves(trials: Mapping[str, Sequence[ArmRun]]) -> list[ArmCurve]:
    """For a figure; a method has the same colour in all of them."""
    known = ("NTK-FL", "FedAvg", "DataShare", "centralised", "FedNova")
    order = [*known, *(name for name in trials if name not in known)]
    return [ArmCurve(name, runs, order.index(name)) for name, runs in trials.items()]


def trains(trials: Mapping[str, Sequence[ArmRun]]) -> Check:
    """No arm diverged."""
    diverged = [name for name, runs in trials.items() if any(trial.diverged for trial in runs)]
    return holds("every arm trains", not diverged, ", ".join(diverged) or "all", "all")


def at_round(trial: ArmRun, number: int) -> float:
    """Accuracy at the last evaluation up to this round; 0 after divergence."""
    reached = np.flatnonzero(trial.rounds <= number)
    return float(np.nan_to_num(trial.accuracy[reached[-1]]))


def mean_at(trials: Sequence[ArmRun], number: int) -> pl.report.SeedMean:
    return pl.report.SeedMean.of([at_round(trial, number) for trial in trials])


def numbers(trials: Mapping[str, Sequence[ArmRun]], settings: Mapping[str, Setting]) -> dict[str, Any]:
    """For a study's data."""
    return {
        "settings": {name: {"lr": lr, "steps": steps} for name, (lr, steps) in settings.items()},
        "trials": [trial.plain() for runs in trials.values() for trial in runs],
    }

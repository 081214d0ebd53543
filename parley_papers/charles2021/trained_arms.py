"""The arms of paper 001's trained figures: LocalUpdate with Theta_{1:K}, a server and a proximal strength."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.training_problem import Recipe
from parley_papers.trials import Arm, ArmRun

MOMENTUM = 0.9
"""beta of the servers that have one (Appendix E.3)."""
_SERVERS = {
    "none": pl.Descent(),
    "nesterov": pl.Nesterov(momentum=MOMENTUM),
    "heavy-ball": pl.HeavyBall(momentum=MOMENTUM),
}


def local_update(
    name: str, problem: Recipe, *, steps: int, rounds: int, every: int, server: str = "none", alpha: float = 0.0
) -> Arm:
    """An arm without its learning rates."""
    method = pl.LocalUpdate(steps=steps, batch=problem().batch, alpha=alpha, server=_SERVERS[server])
    return Arm(name, problem, method, rounds, every)


def having_rates(arm: Arm, rates: tuple[float, float]) -> Arm:
    """The arm with these learning rates of clients (gamma) and server (eta)."""
    gamma, eta = rates
    assert isinstance(arm.algorithm, pl.LocalUpdate)
    return arm.having(lr=gamma, server=replace(arm.algorithm.server, lr=eta))


def at_end(series: Callable[[ArmRun], Array]) -> Callable[[ArmRun], float]:
    """The mean over the last tenth of the evaluations."""
    return lambda trial: float(series(trial)[-max(len(trial.loss) // 10, 1) :].mean())


def mean_accuracy(trial: ArmRun) -> float:
    """Over all evaluated rounds but the start: high if it is reached soon."""
    return float(np.nan_to_num(trial.accuracy[1:]).mean())

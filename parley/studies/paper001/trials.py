"""Training LocalUpdate with Theta_{1:K} on a problem, and choosing learning rates from one grid for all arms alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parley.algorithms.base.server import Descent, HeavyBall, Nesterov, ServerOptimizer
from parley.algorithms.local_update import LocalUpdate
from parley.data import ClientData
from parley.studies.harness import Context
from parley.studies.problem import Problem, follow
from parley.theory.theta import Array

MOMENTUM = 0.9
"""beta of the servers that have one (Appendix E.3)."""

TUNING_SEED = 1000


@dataclass(frozen=True)
class Arm:
    """What is compared: a server and a proximal strength; gamma and eta are chosen for it."""

    name: str
    server: str = "none"
    alpha: float = 0.0
    gamma: float = 0.0
    eta: float = 1.0

    def method(self, steps: int, batch: int) -> LocalUpdate:
        kinds: dict[str, Callable[[], ServerOptimizer]] = {
            "none": lambda: Descent(self.eta),
            "nesterov": lambda: Nesterov(self.eta, MOMENTUM),
            "heavy-ball": lambda: HeavyBall(self.eta, MOMENTUM),
        }
        return LocalUpdate(lr=self.gamma, steps=steps, batch=batch, alpha=self.alpha, server=kinds[self.server]())


@dataclass(frozen=True, eq=False)
class Trial:
    """One run: accuracy and loss at the evaluated rounds; what came after divergence is NaN."""

    arm: Arm
    seed: int
    rounds: Array
    accuracy: Array
    loss: Array

    @property
    def diverged(self) -> bool:
        return not bool(np.isfinite(self.loss).all())

    def plain(self) -> dict[str, Any]:
        """For the study's data."""
        return {"arm": vars(self.arm), "seed": self.seed, "rounds": self.rounds, "accuracy": self.accuracy,
                "loss": self.loss}  # fmt: skip


def run(problem: Problem, arm: Arm, samples: ClientData, *, steps: int, rounds: int, every: int, seed: int) -> Trial:
    """Train; the seed fixes the start, the batches and which clients are sampled, alike for all arms."""
    course = follow(arm.method(steps, problem.batch), problem, samples, rounds=rounds, every=every, seed=seed)
    return Trial(arm, seed, course.rounds, course.accuracy, course.loss)


def tuned(
    problem: Problem,
    arms: Sequence[Arm],
    grid: Iterable[tuple[float, float]],
    score: Callable[[Trial], float],
    context: Context,
    *,
    steps: int,
    rounds: int,
    every: int,
) -> tuple[list[Arm], dict[str, list[dict[str, float]]]]:
    """Each arm with the (gamma, eta) of the grid that scores best on the samples to choose by, and all scores.

    The runs' seed is one that no result uses; a setting that diverges scores minus infinity.
    """
    pairs = list(grid)
    table: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in arms}
    best = dict.fromkeys((arm.name for arm in arms), (-np.inf, pairs[0]))
    work = [(arm, pair) for arm in arms for pair in pairs]
    for arm, (gamma, eta) in context.track(work, "tuning"):
        trial = run(
            problem,
            replace(arm, gamma=gamma, eta=eta),
            problem.choose,
            steps=steps,
            rounds=rounds,
            every=every,
            seed=-1,
        )
        value = -np.inf if trial.diverged else score(trial)
        table[arm.name].append({"gamma": gamma, "eta": eta, "score": value})
        best[arm.name] = max(best[arm.name], (value, (gamma, eta)))
    chosen = [replace(arm, gamma=best[arm.name][1][0], eta=best[arm.name][1][1]) for arm in arms]
    return chosen, table

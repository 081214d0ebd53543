"""A pilot: a few short runs of the best candidates, halved by what they have reached, through ordinary training.

Rungs double in length, and each goes on with the runs of the one before, so six candidates cost 13
times the first rung's rounds. The seed is one that no result uses. Where losses were forecast, a run is judged by
what it would cost in all: what it has spent, and the forecast from the loss it has reached on; else by its metric.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from parley.advise.plan.choose import Goal, Ranked
from parley.algorithms import Algorithm
from parley.channels.base import Channel
from parley.core.errors import QuorumError
from parley.engine.run import Run
from parley.engine.settings import Evaluation
from parley.store.runs import RunStore
from parley.study.study import Logging, Study
from parley.study.train import train
from parley.theory.theta import Array

SHARE = 0.5
"""Rounds of the pilot, all candidates together, over those of the run it is for."""
SEED = 1000
"""Added to the study's seed, so that nothing is chosen by the luck of the run itself."""
_LEAST, _STEADY = 3, 6
"""Rounds of the first rung at least, and from which on a run's own rate says something."""


@dataclass(frozen=True, eq=False)
class Arm:
    """One candidate of a pilot."""

    name: str
    algorithm: Algorithm
    channels: tuple[Channel, ...]
    price: float
    """Of a round, in the unit of the budget."""
    ranked: Ranked | None = None
    """Its forecast, if it has one."""


@dataclass(frozen=True)
class Tried:
    """How far a candidate got."""

    name: str
    rounds: int
    metric: float
    """The headline metric where it was stopped."""
    score: float
    """Smaller is better."""


@dataclass(frozen=True)
class Pilot:
    """What was tried, the winner first."""

    tried: tuple[Tried, ...]
    rounds: int
    """Of all candidates together."""
    of: int
    """Rounds of the run it is for."""
    winner: int
    """The place of the winner among the arms."""

    def sentence(self) -> str:
        return (
            f"{len(self.tried)} candidates were tried in {self.rounds} rounds in all, {self.rounds / self.of:.0%} of "
            f"the {self.of} rounds of the run; '{self.tried[0].name}' won."
        )


def rung_rounds(arms: int) -> int:
    """Rounds of all rungs together, in units of the first rung's length."""
    total, left, length, added = 0, arms, 1, 1
    while True:
        total += left * added
        if left <= 2:
            return total
        left, added, length = math.ceil(left / 2), length, 2 * length


def pilot(
    study: Study, arms: Sequence[Arm], goal: Goal, rounds: int, least: float | None, share: float = SHARE
) -> Pilot:
    """Try as many of the arms as the budget pays for, in their order.

    `rounds` are those of the run, `least` is the loss that forecasts count from.
    """
    evaluation = replace(study.evaluation or Evaluation(), every=1, patience=None)
    base = replace(
        study,
        data=study.federation(),
        seed=study.seed + SEED,
        evaluation=evaluation,
        logging=Logging(),
        observers=(),
        plugins=(),
    )
    budget = int(share * rounds)
    indices = list(range(max([n for n in range(2, len(arms) + 1) if _LEAST * rung_rounds(n) <= budget], default=1)))
    runs: dict[int, Run | None] = {}
    tried_by_index: dict[int, Tried] = {}
    length = max(1, budget // rung_rounds(len(indices)))
    spent = 0
    with TemporaryDirectory() as folder, RunStore(Path(folder) / "pilot.db") as store:
        while True:
            for index in indices:
                before = runs.get(index)
                arm = arms[index]
                pilot_study = replace(
                    base, algorithm=arm.algorithm, channels=arm.channels, rounds=length, name=arm.name
                )
                run = _trained(pilot_study, store, None if before is None else before.id)
                runs[index] = run
                tried_by_index[index] = _judged(arm, run, goal, least)
                spent += tried_by_index[index].rounds - (len(before.records) - 1 if before is not None else 0)
            indices.sort(key=lambda index: tried_by_index[index].score)
            if len(indices) <= 2 or all(_done(runs[index], base) for index in indices[:2]):
                break
            indices = indices[: math.ceil(len(indices) / 2)]
            length *= 2
    winner = indices[0]
    order = [*indices, *sorted(set(tried_by_index) - set(indices), key=lambda index: tried_by_index[index].score)]
    return Pilot(tuple(tried_by_index[index] for index in order), spent, rounds, winner)


def _trained(study: Study, store: RunStore, resume: str | None) -> Run | None:
    try:
        return train(study, store=store, resume=resume)
    except QuorumError:  # clients sent NaN
        return None


def _done(run: Run | None, study: Study) -> bool:
    """It has reached its target, or it cannot go on."""
    if run is None or run.headline is None or study.evaluation is None or study.evaluation.target is None:
        return run is None
    return run.headline.reaches(run.headline.of(run.records[-1]), study.evaluation.target)


def _judged(arm: Arm, run: Run | None, goal: Goal, least: float | None) -> Tried:
    if run is None or run.headline is None:
        return Tried(arm.name, 0 if run is None else len(run.records) - 1, math.nan, math.inf)
    last = run.records[-1]
    rounds, metric = last.number, run.headline.of(last)
    value = math.nan if metric is None else metric
    if not math.isfinite(value):
        return Tried(arm.name, rounds, value, math.inf)
    if arm.ranked is not None and goal.excess is not None and least is not None:
        losses = np.asarray(run.series("central/loss")[1], dtype=np.float64) - least
        return Tried(arm.name, rounds, value, arm.price * _in_all(arm.ranked, goal.excess, losses))
    return Tried(arm.name, rounds, value, value if run.headline.smaller else -value)


def _in_all(ranked: Ranked, target: float, losses: Array) -> float:
    """Rounds until the target, from the excess losses [rounds + 1] of a run so far.

    The slower of two ways to go on: as forecast from the loss that was reached, as much slower as it has been so far;
    or at the rate of the second half of these rounds.
    """
    rounds, excess = len(losses) - 1, float(losses[-1])
    if excess <= target:
        return float(rounds)
    curve = np.minimum.accumulate(ranked.curve)
    here, rounds_to_target = (
        int(np.argmax(curve <= level)) if curve[-1] <= level else len(curve) for level in (excess, target)
    )
    slower = max(rounds / max(here, 1), 0.5)
    if rounds < _STEADY:
        return rounds + (rounds_to_target - here) * slower
    half = rounds // 2
    rate = math.log(max(float(losses[-1 - half]), 1e-300) / excess) / half
    steady = math.log(excess / target) / rate if rate > 0 else math.inf
    return rounds + max((rounds_to_target - here) * slower, steady)

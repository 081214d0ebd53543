"""Training paper 004's methods with rates chosen from one grid for all, and counting the parameters they send.

As in the paper momentum SGD (0.9, Nesterov, weight decay 1e-4) runs through the rounds at every client. FedAvg is
FedALS with alpha = 1, which is the same method exactly. Each arm gets the rate with the best result of a whole run,
with a seed and on samples that no result uses: the best of a grid of powers of two, which goes on where the best lies
at its end (Appendix E.3). Shorter runs would mislead: with batch normalisation FedAvg's accuracy falls again, the
sooner the larger the rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from parley.algorithms.base.protocol import Algorithm, Cohort, Exchange, Question
from parley.algorithms.fedals import FedALS, FedALSScaffold
from parley.algorithms.scaffold import Scaffold
from parley.core.key import Key
from parley.core.message import Message, State
from parley.engine.observers import ConsensusDistance, layer_groups
from parley.learn.task import Task
from parley.studies.harness import Context, Scale
from parley.studies.paper004.figures import pictures
from parley.studies.problem import follow
from parley.studies.rates import best_rates
from parley.studies.spread import spread
from parley.theory.theta import Array

OPTIONS: dict[str, Any] = {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
TUNING_SEED = 1000
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
    """All divide `rounds` and `last`, so that at the rounds results are told for every arm has just averaged all."""
    alpha: int
    """The alpha of all tables but Table 2."""
    layers: tuple[int, ...]
    """Table 3's L, all but the one that means all layers."""
    layer: int
    """The L that corresponds to the paper's best, 16 of 20."""
    last: int
    """Results are means over the rounds that this divides ..."""
    told: int
    """... the last so many of them."""


FURTHER: dict[Scale, int] = {"smoke": 0, "cpu": 4, "paper": 8}
"""How often the grid may be widened for an arm."""
SIZES: dict[Scale, Size] = {
    "smoke": Size(20, 10, (1 / 16, 1 / 8), 5, (0,), (1, 2, 5), 2, (1, 2, 3), 2, 10, 1),
    "cpu": Size(300, 200, tuple(2.0**k for k in range(-8, -4)), 25, (0, 1, 2), (1, 5, 10, 25, 50, 100), 10,
                (1, 3, 5, 6), 5, 100, 2),
    "paper": Size(4000, 2000, tuple(0.01 * 2.0**k for k in range(-4, 5)), 100, tuple(range(20)),
                  (1, 5, 10, 25, 50, 100), 10, (1, 4, 8, 12, 16, 19), 16, 100, 5),
}  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """A method on a data set."""

    method: str = "fedals"
    """fedals, scaffold or fedals-scaffold; FedAvg is fedals with alpha = 1."""
    alpha: int = 1
    layers: int | None = None
    """Layers in phi; None for all but the last."""
    iid: bool = False
    tau: int = TAU
    data: str = "cifar10"
    norm: bool = False
    """Batch normalisation in the small network."""
    lr: float = 0.0
    """Chosen from the grid."""

    def algorithm(self, batch: int) -> Algorithm:
        if self.method == "scaffold":
            return Scaffold(lr=self.lr, steps=self.tau, batch=batch, options=OPTIONS, keep=True)
        kind = FedALSScaffold if self.method == "fedals-scaffold" else Tallied
        return kind(lr=self.lr, steps=self.tau, batch=batch, alpha=self.alpha, layers=self.layers, options=OPTIONS)


@dataclass(frozen=True)
class Tallied(FedALS):
    """FedALS that counts the entries of what is sent: `down`, `up`, and the statistics of normalisations apart."""

    tally: Counter[str] = field(default_factory=Counter, compare=False)

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Exchange:
        course = super().round(task, state, cohort, number, key)
        messages = next(course)
        self._count("down", "model", Question.of(messages).messages)
        replies = yield messages
        self._count("up", "update", replies)
        try:
            course.send(replies)
        except StopIteration as end:
            new: State = end.value
            return new
        raise AssertionError("FedALS has one exchange a round")

    def _count(self, way: str, group: str, messages: Mapping[str, Message]) -> None:
        for message in messages.values():
            self.tally[way] += sum(value.numel() for value in message.get(group).values())
            self.tally["buffers"] += sum(value.numel() for value in message.get("buffers").values())


@dataclass(frozen=True)
class Job:
    """One run; `told`: on the samples results are told on, else on those settings are chosen by."""

    scale: Scale
    arm: Arm
    seed: int
    rounds: int
    every: int
    told: bool = True


@dataclass(frozen=True, eq=False)
class Trial:
    """One run's accuracy and loss at the evaluated rounds, and more where it was measured."""

    arm: Arm
    seed: int
    rounds: Array
    """Evaluated, in rounds of 5 steps whatever tau is."""
    accuracy: Array
    loss: Array
    consensus: dict[str, Array]
    """Per-parameter consensus distance by layer, in layer order, round by round; only for tau other than 5."""
    sent: dict[str, float]
    """Entries sent per client in the whole run: trainable ones `down` and `up`, and `buffers`."""
    about: str

    @property
    def diverged(self) -> bool:
        return not bool(np.isfinite(self.loss).all())

    def final(self, last: int, told: int) -> float:
        """The mean accuracy over the last `told` rounds that `last` divides."""
        chosen = np.nan_to_num(self.accuracy[(self.rounds % last == 0) & (self.rounds > 0)][-told:])
        return float(chosen.mean())

    def plain(self) -> dict[str, Any]:
        """For a study's data."""
        return {"arm": vars(self.arm), "seed": self.seed, "rounds": self.rounds, "accuracy": self.accuracy,
                "loss": self.loss, "sent": self.sent}  # fmt: skip


def perform(job: Job) -> Trial:
    """Train; the same seed gives the same start and batches to all arms."""
    problem = pictures(job.scale, job.arm.data, job.arm.iid, job.arm.norm)
    stacks = job.scale != "paper" and not job.arm.norm
    algorithm = job.arm.algorithm(problem.batch)
    listeners = [ConsensusDistance()] if job.arm.tau != TAU else []
    course = follow(
        algorithm, problem, problem.tell if job.told else problem.choose, rounds=job.rounds, every=job.every,
        seed=job.seed, listeners=listeners, runtime="stacked" if stacks else "inline",
    )  # fmt: skip
    consensus = {}
    if listeners and course.run is not None:
        layers = layer_groups(course.run.task.network)
        consensus = {layer: course.run.series(f"consensus/{layer}")[1] for layer in layers}
    tally = algorithm.tally if isinstance(algorithm, Tallied) else {}
    sent = {way: count / len(problem.federation) for way, count in tally.items()}
    rounds = course.rounds * (job.arm.tau / TAU)
    return Trial(job.arm, job.seed, rounds, course.accuracy, course.loss, consensus, sent, problem.about)


_DONE: dict[Job, Trial] = {}
"""Studies run in one process (`parley reproduce 004`) share what they train."""


def performed(jobs: Sequence[Job], context: Context, what: str) -> list[Trial]:
    """The trials of all jobs; those done before are not done again."""
    missing = [job for job in dict.fromkeys(jobs) if job not in _DONE]
    _DONE.update(zip(missing, spread(perform, missing, context, what), strict=True))
    return [_DONE[job] for job in jobs]


def compared(arms: Sequence[Arm], context: Context) -> dict[Arm, list[Trial]]:
    """The trials of every arm, with its own rate and all seeds."""
    size, scale = SIZES[context.scale], context.scale
    rates = _chosen(arms, context)
    jobs = {
        arm: [Job(scale, replace(arm, lr=rates[arm]), seed, *_length(arm, size)) for seed in size.seeds] for arm in arms
    }
    performed([job for own in jobs.values() for job in own], context, "training")
    return {arm: [_DONE[job] for job in own] for arm, own in jobs.items()}


def _chosen(arms: Sequence[Arm], context: Context) -> dict[Arm, float]:
    """Each arm's rate; one that diverges is never chosen if another does not."""
    size = SIZES[context.scale]

    def scores(pairs: list[tuple[Arm, float]]) -> list[float]:
        jobs = [
            Job(context.scale, replace(arm, lr=lr), TUNING_SEED, *_length(arm, size), told=False) for arm, lr in pairs
        ]
        return [
            -np.inf if trial.diverged else trial.final(size.last, size.told)
            for trial in performed(jobs, context, "choosing rates")
        ]

    return best_rates(arms, size.rates, scores, FURTHER[context.scale])


def _length(arm: Arm, size: Size) -> tuple[int, int]:
    """Rounds and rounds between evaluations; another tau takes as many steps as tau = 5 does."""
    rounds = size.iid if arm.iid else size.rounds
    return max(rounds * TAU // arm.tau, 1), max(size.every * TAU // arm.tau, 1)

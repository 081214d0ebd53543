"""Training arms (a method on a problem) over seeds and rates: the one way all studies train and tune.

    arms = [Arm("FedAvg", recipe, FedAvg(steps=5), rounds=100, every=10), ...]
    rates = tuned(arms, (0.01, 0.1), having_rate, last_accuracy, context)     # the same budget for every arm
    trials = trained([having_rate(arm, rates.best[arm.name]) for arm in arms], seeds=range(3), context=context)

Every trial is an ordinary run. Where the study has a store, it is kept there under its arm's name, so that
`parley runs` lists and `parley compare` compares it; one that was interrupted is resumed, and one that has finished
before with the same settings and the same version of the family's results (`versions`) is not trained again. Finished
trials also travel as small files (`kept`), which are looked into first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from json import dumps
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.harness import StudyContext
from parley_papers.rates import best_settings
from parley_papers.spread import spread
from parley_papers.training_problem import Recipe, SampleSet
from parley_papers.trials.kept import KeptTrial, KeptTrials
from parley_papers.trials.settings import settings
from parley_papers.versions import results_version

TUNING_SEED = 1000
"""Settings are chosen with this seed, which no result uses."""
Weights = Literal["size", "uniform"]
_DIVERGED = 1e6
"""A loss beyond this counts as divergence."""
Point = TypeVar("Point")


@dataclass(frozen=True)
class Arm:
    """What is compared: a method on a problem, and how long it trains."""

    name: str
    problem: Recipe
    algorithm: pl.Algorithm
    rounds: int
    every: int
    """Rounds between evaluations."""
    runtime: str = "auto"
    weights: Weights = "uniform"
    listeners: tuple[type[pl.Listener], ...] = ()
    metrics: tuple[str, ...] = ()
    """Beginnings of the names of further metrics a trial keeps, round by round."""
    channels: pl.channels.Chain = field(default_factory=pl.channels.Chain)
    """What happens to replies on the way."""
    init_from: pl.WarmStart | None = None
    """What its weights begin from in place of random ones."""
    target: float | None = None
    """An accuracy at which it has shown what it is trained for and stops."""
    extend: bool = False
    """Its trials go on where one of fewer rounds ended, which is then no longer kept by itself."""

    def having(self, **settings: Any) -> Arm:
        """The arm with other settings of its algorithm."""
        return replace(self, algorithm=replace(self.algorithm, **settings))  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class ArmRun:
    """One run of an arm: accuracy and loss at the evaluated rounds; what came after divergence is NaN."""

    arm: Arm
    seed: int
    rounds: Array
    accuracy: Array
    loss: Array
    metrics: dict[str, Array] = field(default_factory=dict)
    """What else the arm asked for, at the rounds it was measured in."""
    run: str = ""
    """The run's id, where it was stored."""

    @property
    def diverged(self) -> bool:
        return not bool(np.isfinite(self.loss).all())

    def last(self, share: float) -> float:
        """The mean accuracy over this last share of the evaluations; what diverged counts as 0."""
        return float(np.nan_to_num(self.accuracy)[-max(round(len(self.accuracy) * share), 1) :].mean())

    def plain(self) -> dict[str, Any]:
        """For a study's data."""
        return {
            "arm": self.arm.name,
            "algorithm": settings(self.arm.algorithm),
            "seed": self.seed,
            "run": self.run,
            "rounds": self.rounds,
            "accuracy": self.accuracy,
            "loss": self.loss,
        }


@dataclass(frozen=True)
class Tuned(Generic[Point]):
    """The point of the grid that each arm got, and how all that were tried scored."""

    best: dict[str, Point]
    scores: dict[str, dict[Point, float]]

    def plain(self) -> dict[str, Any]:
        """For a study's data."""
        return {
            name: [{"setting": point, "score": score} for point, score in scored.items()]
            for name, scored in self.scores.items()
        }


@dataclass(frozen=True)
class _Planned:
    arm: Arm
    seed: int
    samples: SampleSet
    store: Path | None
    alone: bool
    """No other job trains at the same time, so this one may use every core."""

    version: int
    """Of the results of the study's family."""

    def config(self, *, defaults: bool = True) -> dict[str, Any]:
        """All that decides the numbers but the seed, as plain JSON; without `defaults`, only what differs from them."""
        arm = self.arm
        return {
            "rounds": arm.rounds,
            "algorithm": settings(arm.algorithm, defaults=defaults),
            "data": arm.problem.plain() | {"evaluated on": self.samples},
            "cohort": {"weights": arm.weights},
            "channels": [settings(channel, defaults=defaults) for channel in arm.channels.stages],
            "evaluate": {"every": arm.every, "target": arm.target},
            "observe": [kind.__name__ for kind in arm.listeners],
            "metrics": list(arm.metrics),
            "init_from": None if arm.init_from is None else arm.init_from.described(),
            "version": self.version,
        }

    def fingerprint(self) -> str:
        """The same for two jobs exactly if they must give the same numbers with the same seed."""
        decisive = self.config(defaults=False)
        if self.arm.extend:
            del decisive["rounds"]
        return blake2b(dumps(decisive, sort_keys=True).encode(), digest_size=12).hexdigest()

    def key(self) -> tuple[str, int, int]:
        return self.fingerprint(), self.seed, self.arm.rounds


def having_rate(arm: Arm, lr: float) -> Arm:
    """The arm with this step size."""
    return arm.having(lr=lr)


def trained(
    arms: Iterable[Arm],
    seeds: Sequence[int],
    context: StudyContext,
    samples: SampleSet = "test",
    what: str = "training",
) -> dict[str, list[ArmRun]]:
    """The trials of every arm, by its name, in the order of the seeds.

    A seed fixes the start, the batches and which clients are sampled, alike for all arms. Each trial is kept as soon as
    it has finished; what was kept before is not trained again.
    """
    listed, kept = list(arms), KeptTrials(context.study, context.keep)
    alone, version = context.scale == "smoke" or len(listed) * len(seeds) == 1, results_version(context.study)
    jobs = [_Planned(arm, seed, samples, context.store, alone, version) for arm in listed for seed in seeds]
    different = {job.key(): job for job in jobs}
    known = {key: _from_kept(job, kept) for key, job in different.items()}
    left = [job for key, job in different.items() if known[key] is None]

    def keep(job: _Planned, trial: ArmRun) -> None:
        known[job.key()] = trial
        kept.add(job.key(), KeptTrial(job.config(), trial.rounds, trial.accuracy, trial.loss, trial.metrics))

    context.trained(len(left), len(different) - len(left))
    spread(_perform, left, context, what, keep)
    trials: dict[str, list[ArmRun]] = {arm.name: [] for arm in listed}
    for job in jobs:
        trial = known[job.key()]
        assert trial is not None
        trials[job.arm.name].append(replace(trial, arm=job.arm))
    return trials


def _from_kept(job: _Planned, kept: KeptTrials) -> ArmRun | None:
    trial = kept.find(job.key(), job.config())
    if trial is None:
        return None
    return ArmRun(job.arm, job.seed, trial.rounds, trial.accuracy, trial.loss, dict(trial.metrics))


def tuned(
    arms: Sequence[Arm],
    grid: Sequence[Point],
    apply: Callable[[Arm, Point], Arm],
    score: Callable[[ArmRun], float],
    context: StudyContext,
    *,
    further: int = 0,
) -> Tuned[Point]:
    """The point of one grid, the same for all arms, with which each scores best on the validation samples.

    A setting that diverges scores minus infinity. `further`: how often an arm whose best rate is the smallest or
    largest tried gets half or twice that one too.
    """
    by_name = {arm.name: arm for arm in arms}

    def scores(pairs: list[tuple[str, Point]]) -> list[float]:
        tries = [replace(apply(by_name[name], point), name=f"{name}, {point}") for name, point in pairs]
        trials = trained(tries, [TUNING_SEED], context, "validation", "choosing settings")
        return [-np.inf if trials[arm.name][0].diverged else score(trials[arm.name][0]) for arm in tries]

    best, scored = best_settings(list(by_name), grid, scores, further)
    return Tuned(best, scored)


def tuned_and_trained(
    arms: Sequence[Arm],
    rates: Sequence[float],
    score: Callable[[ArmRun], float],
    seeds: Sequence[int],
    context: StudyContext,
    *,
    further: int,
) -> dict[str, list[ArmRun]]:
    """The trials of every arm with its best step size and all seeds."""
    best = tuned(arms, rates, having_rate, score, context, further=further).best
    return trained([having_rate(arm, best[arm.name]) for arm in arms], seeds, context)


def _perform(job: _Planned) -> ArmRun:
    arm, problem = job.arm, job.arm.problem()
    study = pl.Study(
        arm.algorithm,
        problem.evaluated_on(job.samples),
        model=problem.model,
        rounds=arm.rounds,
        cohort=pl.Sampling(problem.cohort, weights=arm.weights),
        seed=job.seed,
        runtime=arm.runtime,
        workers=None if job.alone else 1,
        evaluation=pl.Evaluation(every=arm.every, target=arm.target),
        channels=arm.channels,
        name=arm.name,
        revision=job.fingerprint(),
        init_from=arm.init_from,
    )
    with ExitStack() as stack:
        store = stack.enter_context(pl.RunStore(job.store)) if job.store is not None else None
        return _trial(job, pl.attempt(study, store, [kind() for kind in arm.listeners], extend=arm.extend))


def _trial(job: _Planned, attempt: pl.Attempt) -> ArmRun:
    arm = job.arm
    rounds = np.unique([*range(0, arm.rounds + 1, arm.every), arm.rounds]).astype(np.float64)
    if not attempt.curves:
        nothing = np.full(len(rounds), np.nan)
        return ArmRun(arm, job.seed, rounds, nothing, nothing)
    if arm.target is not None:
        rounds = attempt.curves["central/accuracy"][0].astype(np.float64)
    accuracy, loss = (attempt.curves[name][1] for name in ("central/accuracy", "central/loss"))
    loss = np.where(loss < _DIVERGED, loss, np.nan)
    rounds = rounds[: len(accuracy)]  # what reached its target has ended
    further = {name: values for name, (_, values) in attempt.curves.items() if name.startswith(arm.metrics)}
    return ArmRun(arm, job.seed, rounds, accuracy, loss, further, attempt.run)

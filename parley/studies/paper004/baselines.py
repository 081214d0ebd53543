"""FedNova and FedDyn beside FedAvg on real data: the baselines other papers compare with, held to modest checks.

Each class of Fashion-MNIST is divided over the clients by Dirichlet(0.1), so that their sizes and their labels differ,
and they go through their data a number of times a round: unequal local steps. FedAvg then leans towards clients with
many steps; FedNova does not and must not be behind. FedDyn (alpha = 0.1, the mean model reported) must reach FedAvg's
accuracy in no more rounds. Both rivals and FedAvg choose from the same rates, with a seed and on samples that no result
uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from parley.algorithms.feddyn import FedDyn
from parley.algorithms.fednova import FedNova
from parley.algorithms.local_update import FedAvg
from parley.data import Dirichlet, digits, fashion_mnist
from parley.models import mlp
from parley.studies.curves import Line, lines
from parley.studies.harness import Check, Context, Result, Scale, at_least, at_most, study
from parley.studies.problem import Problem, follow, halved, official_test, rows
from parley.studies.rates import best_rates
from parley.studies.spread import spread
from parley.theory.theta import Array

SLACK = 0.01
"""How much accuracy noise may take from FedNova."""
NEAR = 0.98
"""Share of FedAvg's last accuracy that counts as reached."""
TUNING_SEED = 1000
_METHODS: dict[str, Callable[..., FedAvg]] = {"FedAvg": FedAvg, "FedNova": FedNova, "FedDyn": FedDyn}


@dataclass(frozen=True)
class _Size:
    rates: tuple[float, ...]
    rounds: int
    every: int
    seeds: tuple[int, ...]


_SIZES: dict[Scale, _Size] = {
    "smoke": _Size((1 / 16, 1 / 8), 10, 1, (0,)),
    "cpu": _Size(tuple(2.0**k for k in range(-7, -2)), 100, 2, (0, 1, 2)),
    "paper": _Size(tuple(2.0**k for k in range(-9, 0)), 200, 2, tuple(range(20))),
}
_WORDS: dict[Scale, str] = {
    "smoke": "digits, 10 clients, 10 rounds", "cpu": "12,000 samples of Fashion-MNIST at 14x14, 20 clients, 3 seeds",
    "paper": "Fashion-MNIST, 20 clients, 200 rounds, 20 seeds",
}  # fmt: skip


@dataclass(frozen=True)
class _Job:
    scale: Scale
    name: str
    lr: float
    passes: int
    """Local passes over a client's data a round; 0 takes 5 steps instead, the same for all."""
    seed: int
    rounds: int
    told: bool = True


@dataclass(frozen=True, eq=False)
class _Trial:
    job: _Job
    rounds: Array
    accuracy: Array
    loss: Array

    def last(self) -> float:
        """The mean accuracy over the last fifth."""
        return float(np.nan_to_num(self.accuracy[-max(len(self.accuracy) // 5, 1) :]).mean())

    def reaches(self, accuracy: float) -> float:
        """The first evaluated round that has it; infinity without one."""
        found = np.flatnonzero(self.accuracy >= accuracy)
        return float(self.rounds[found[0]]) if len(found) else np.inf


@study("004/fednova", scales=_WORDS)
def fednova(scale: Scale, context: Context) -> Result:
    """With unequal local steps FedNova is not behind FedAvg; with equal ones it is FedAvg."""
    trials = _compared(scale, ("FedAvg", "FedNova"), 2, context)
    same = [_perform(_Job(scale, name, 1 / 16, 0, 0, 5)) for name in ("FedAvg", "FedNova")]
    checks = _trained(trials)
    sizes = _problem(scale).federation.sizes()
    checks.append(at_least("samples of the largest client over the smallest's", float(sizes.max() / sizes.min()), 4))
    checks.append(
        at_most("equal steps: largest difference of losses", float(np.abs(same[0].loss - same[1].loss).max()), 0.0)
    )
    if scale != "smoke":
        last = {name: _mean(trial.last() for trial in own) for name, own in trials.items()}
        checks.append(at_least("FedNova over FedAvg, last fifth", last["FedNova"] - last["FedAvg"], -SLACK))
    return _told(scale, trials, checks, context)


@study("004/feddyn", scales=_WORDS)
def feddyn(scale: Scale, context: Context) -> Result:
    """FedDyn reaches FedAvg's accuracy in no more rounds."""
    trials = _compared(scale, ("FedAvg", "FedDyn"), 5, context)
    checks = _trained(trials)
    if scale != "smoke":
        target = NEAR * _mean(trial.last() for trial in trials["FedAvg"])
        needed = {name: _mean(trial.reaches(target) for trial in own) for name, own in trials.items()}
        checks.append(at_most(f"FedDyn: rounds to {target:.1%}", needed["FedDyn"], needed["FedAvg"]))
    return _told(scale, trials, checks, context)


@lru_cache(maxsize=1)
def _problem(scale: Scale) -> Problem:
    if scale == "smoke":
        data, clients, words = digits(), 10, "scikit-learn's digits"
    elif scale == "cpu":
        data, clients, words = halved(fashion_mnist()), 20, "12,000 samples of Fashion-MNIST at 14x14"
        data = replace(data, x=data.x[:12000], y=data.y[:12000])
    else:
        data, clients, words = fashion_mnist(), 20, "Fashion-MNIST"
    test = official_test(data)
    choose = len(test) // 5
    return Problem(
        data.split(Dirichlet(0.1, by="class"), clients, seed=0), mlp(50), rows(test, 0, choose),
        rows(test, choose, None), clients, 32,
        f"{words}, {clients} clients, Dirichlet(0.1), MLP of 50 units",
    )  # fmt: skip


def _perform(job: _Job) -> _Trial:
    problem = _problem(job.scale)
    work = {"epochs": job.passes} if job.passes else {"steps": 5}
    options = {"report": "mean"} if job.name == "FedDyn" else {}
    method = _METHODS[job.name](lr=job.lr, batch=problem.batch, **work, **options)
    course = follow(
        method, problem, problem.tell if job.told else problem.choose, rounds=job.rounds,
        every=_SIZES[job.scale].every, seed=job.seed, weights="size",
    )  # fmt: skip
    return _Trial(job, course.rounds, course.accuracy, course.loss)


def _compared(scale: Scale, names: tuple[str, ...], passes: int, context: Context) -> dict[str, list[_Trial]]:
    """Every method with its best rate and all seeds."""
    size = _SIZES[scale]

    def scores(pairs: list[tuple[str, float]]) -> list[float]:
        tries = [_Job(scale, name, lr, passes, TUNING_SEED, size.rounds, told=False) for name, lr in pairs]
        found = spread(_perform, tries, context, "choosing rates")
        return [trial.last() if np.isfinite(trial.loss).all() else -np.inf for trial in found]

    rates = best_rates(names, size.rates, scores, further=0 if scale == "smoke" else 4)
    jobs = [_Job(scale, name, rates[name], passes, seed, size.rounds) for name in names for seed in size.seeds]
    trials: dict[str, list[_Trial]] = {name: [] for name in names}
    for job, trial in zip(jobs, spread(_perform, jobs, context, "training"), strict=True):
        trials[job.name].append(trial)
    return trials


def _trained(trials: Mapping[str, Sequence[_Trial]]) -> list[Check]:
    return [at_least("least accuracy, last fifth", min(t.last() for own in trials.values() for t in own), 0.4)]


def _told(scale: Scale, trials: Mapping[str, list[_Trial]], checks: list[Check], context: Context) -> Result:
    shown = [Line(f"{name}, rate {own[0].job.lr:g}", own, colour) for colour, (name, own) in enumerate(trials.items())]
    passes = next(iter(trials.values()))[0].job.passes
    words = f"{_problem(scale).about}, {passes} passes a round"
    data = {
        name: {"lr": own[0].job.lr, "rounds": own[0].rounds, "accuracy": [t.accuracy for t in own],
               "last fifth": [t.last() for t in own]}
        for name, own in trials.items()
    }  # fmt: skip
    return context.result(checks, {"accuracy": lines({"Test accuracy": shown}, "accuracy", words)}, data)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))

"""FedNova and FedDyn beside FedAvg on real data: the baselines other papers compare with, held to modest checks.

Each class of Fashion-MNIST is divided over the clients by Dirichlet(0.1), so that their sizes and their labels differ,
and they go through their data a number of times a round: unequal local steps. FedAvg then leans towards clients with
many steps; FedNova does not and must not be behind. FedDyn (alpha = 0.1, the mean model reported) must reach FedAvg's
accuracy in no more rounds. All choose from the same rates, with a seed and on samples that no result uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import parley as pl
from parley_papers.figures.training_curves import ArmCurve, training_curves
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, claims, study
from parley_papers.training_problem import Recipe, TrainingProblem, between, halved, official_test
from parley_papers.trials import Arm, ArmRun, trained, tuned_and_trained

SLACK = 0.01
"""How much accuracy noise may take from FedNova."""
NEAR = 0.98
"""Share of FedAvg's last accuracy that counts as reached."""
_METHODS: dict[str, pl.FedAvg] = {"FedAvg": pl.FedAvg(), "FedNova": pl.FedNova(), "FedDyn": pl.FedDyn(report="mean")}


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
    "smoke": "digits, 10 clients, 10 rounds",
    "cpu": "12,000 samples of Fashion-MNIST at 14x14, 20 clients, 3 seeds",
    "paper": "Fashion-MNIST, 20 clients, 200 rounds, 20 seeds",
}


@study("004/fednova", scales=_WORDS)
def fednova(scale: Scale, context: StudyContext) -> StudyResult:
    """With unequal local steps FedNova is not behind FedAvg; with equal ones it is FedAvg."""
    trials = _compared(scale, ("FedAvg", "FedNova"), 2, context)
    equal = [
        replace(_arm(scale, name, steps=5, epochs=None), rounds=5).having(lr=1 / 16) for name in ("FedAvg", "FedNova")
    ]
    losses = [runs[0].loss for runs in trained(equal, [0], context).values()]
    checks = _trained(trials)
    sizes = _problem(scale).federation.sizes()
    checks.append(at_least("samples of the largest client over the smallest's", float(sizes.max() / sizes.min()), 4))
    checks.append(at_most("equal steps: largest difference of losses", float(np.abs(losses[0] - losses[1]).max()), 0.0))
    last = {name: _mean(trial.last(0.2) for trial in runs) for name, runs in trials.items()}
    behind = at_least("FedNova over FedAvg, last fifth", last["FedNova"] - last["FedAvg"], -SLACK)
    return _result(scale, trials, [*checks, *claims([behind], scale)], context)


@study("004/feddyn", scales=_WORDS)
def feddyn(scale: Scale, context: StudyContext) -> StudyResult:
    """FedDyn reaches FedAvg's accuracy in no more rounds."""
    trials = _compared(scale, ("FedAvg", "FedDyn"), 5, context)
    target = NEAR * _mean(trial.last(0.2) for trial in trials["FedAvg"])
    needed = {name: _mean(rounds_to_accuracy(trial, target) for trial in runs) for name, runs in trials.items()}
    soon = at_most(f"FedDyn: rounds to {target:.1%}", needed["FedDyn"], needed["FedAvg"])
    return _result(scale, trials, [*_trained(trials), *claims([soon], scale)], context)


def rounds_to_accuracy(trial: ArmRun, accuracy: float) -> float:
    """The first evaluated round that has this accuracy; infinity without one."""
    reached = np.flatnonzero(trial.accuracy >= accuracy)
    return float(trial.rounds[reached[0]]) if len(reached) else np.inf


def _problem(scale: Scale) -> TrainingProblem:
    if scale == "smoke":
        data, clients, words = pl.data.digits(), 10, "scikit-learn's digits"
    elif scale == "cpu":
        data, clients, words = halved(pl.data.fashion_mnist()), 20, "12,000 samples of Fashion-MNIST at 14x14"
        data = replace(data, x=data.x[:12000], y=data.y[:12000])
    else:
        data, clients, words = pl.data.fashion_mnist(), 20, "Fashion-MNIST"
    test = official_test(data)
    first = len(test) // 5
    return TrainingProblem(
        data.split(pl.Dirichlet(0.1, by="class"), clients, seed=0),
        pl.models.mlp(50),
        between(test, 0, first),
        between(test, first, None),
        clients,
        32,
        f"{words}, {clients} clients, Dirichlet(0.1), MLP of 50 units",
    )


def _arm(scale: Scale, name: str, **work: Any) -> Arm:
    """A method without its rate; `work`: local epochs or steps."""
    size, problem = _SIZES[scale], Recipe(_problem, (scale,))
    method = replace(_METHODS[name], batch=problem().batch, **work)
    return Arm(name, problem, method, size.rounds, size.every, weights="size")


def _compared(scale: Scale, names: tuple[str, ...], passes: int, context: StudyContext) -> dict[str, list[ArmRun]]:
    """Every method with its best rate and all seeds; `passes` over a client's data a round."""
    size = _SIZES[scale]
    arms = [_arm(scale, name, epochs=passes) for name in names]
    further = 0 if scale == "smoke" else 4
    return tuned_and_trained(arms, size.rates, lambda t: t.last(0.2), size.seeds, context, further=further)


def _trained(trials: Mapping[str, Sequence[ArmRun]]) -> list[Check]:
    return [at_least("least accuracy, last fifth", min(t.last(0.2) for runs in trials.values() for t in runs), 0.4)]


def _result(
    scale: Scale, trials: Mapping[str, Sequence[ArmRun]], checks: list[Check], context: StudyContext
) -> StudyResult:
    methods = {name: runs[0].arm.algorithm for name, runs in trials.items()}
    rates = {name: method.lr for name, method in methods.items() if isinstance(method, pl.FedAvg)}
    curves = [ArmCurve(f"{name}, rate {rates[name]:g}", runs, i) for i, (name, runs) in enumerate(trials.items())]
    passes = next(method.epochs for method in methods.values() if isinstance(method, pl.FedAvg))
    words = f"{_problem(scale).about}, {passes} passes a round"
    data = {
        name: {
            "lr": rates[name],
            "rounds": runs[0].rounds,
            "accuracy": [t.accuracy for t in runs],
            "last fifth": [t.last(0.2) for t in runs],
        }
        for name, runs in trials.items()
    }
    figure = training_curves({"Test accuracy": curves}, "accuracy", words)
    return context.result(checks, {"accuracy": figure}, data)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))

"""Accuracy against megabytes: FedAvg, SCAFFOLD, FedALS and boosting with each channel, all clients in every round.

Every arm of a method has the same step size, start, batches and rounds, so that lines differ by the channel alone.
SCAFFOLD's control variates are not compressible (the server's must stay the mean of the clients'), so its traffic
falls to half at most. Boosting sends histograms of gradients, as real numbers here: unbiased channels leave their sums
right on average, and error feedback is refused, since the next histogram is of other nodes. Its trees, and so what it
would send without a channel, depend on what has arrived; its bins are counted without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import parley as pl
from parley_papers.figures.traffic import TrafficCurve, traffic_figure
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, claims, holds, study
from parley_papers.training_problem import Recipe, TrainingProblem, between, halved, official_test
from parley_papers.trials import Arm, ArmRun, trained

NONE = "no channel"
CHANNELS: dict[str, pl.channels.Chain] = {
    NONE: pl.channels.Chain(),
    "qsgd(8)": pl.channels.Chain((pl.qsgd(8),)),
    "qsgd(4)": pl.channels.Chain((pl.qsgd(4),)),
    "fedpaq(4)": pl.channels.Chain((pl.fedpaq(4),)),
    "fedcom": pl.channels.Chain((pl.fedcom(),)),
    "sign": pl.channels.Chain((pl.sign(),)),
    "top-k(0.01)": pl.channels.Chain((pl.top_k(0.01),)),
    "ef21, top-k(0.01)": pl.ef21() | pl.top_k(0.01),
    "random-k(0.1)": pl.channels.Chain((pl.random_k(0.1),)),
    "projection(0.1)": pl.channels.Chain((pl.projection(0.1),)),
}
CLOSE = 0.03
"""How much accuracy a channel that keeps its promise may cost at the end."""
_KEPT = ("qsgd(8)", "fedcom", "sign", "ef21, top-k(0.01)")
"""Channels whose accuracy must stay close to that without, whatever the method: little variance, or feedback."""
BOOSTING = "boosting"
_BOOSTING_KEPT = ("qsgd(8)", "fedcom")
"""The same of boosting, where there is no feedback."""
_WORDS: dict[Scale, str] = {
    "smoke": "digits, 10 clients, 4 rounds",
    "cpu": "Fashion-MNIST, 10 clients, 60 rounds, 2 seeds",
}


@dataclass(frozen=True)
class Size:
    """How much is trained at a scale."""

    rounds: int
    every: int
    seeds: tuple[int, ...]
    lr: float
    leaf: int
    """Fewest rows in a leaf of boosting's trees."""


SIZES: dict[Scale, Size] = {"smoke": Size(4, 2, (0,), 0.1, 5), "cpu": Size(60, 5, (0, 1), 0.05, 20)}


def ten_clients(scale: Scale, network: bool = True) -> TrainingProblem:
    """A data set dealt to ten clients with unequal classes; without a network, for trees.

    Trees see Fashion-MNIST in half the resolution, which has a quarter of the columns to count in.
    """
    if scale == "smoke":
        data, model, first, about = (
            pl.data.digits(),
            pl.models.mlp(64),
            100,
            "scikit-learn's digits, one hidden layer of 64",
        )
    else:
        data, model, first, about = (
            pl.data.fashion_mnist(),
            pl.models.mlp(100),
            2000,
            "Fashion-MNIST, one hidden layer of 100",
        )
    if not network and scale != "smoke":
        data = halved(data)
    test = official_test(data)
    clients = data.split(pl.Dirichlet(0.3), 10, seed=0)
    return TrainingProblem(
        clients,
        model if network else None,
        between(test, 0, first),
        between(test, first, None),
        10,
        32,
        f"{about}, Dirichlet(0.3)",
    )


@study("channels/tradeoff", scales=_WORDS)
def tradeoff(scale: Scale, context: StudyContext) -> StudyResult:
    """Accuracy against megabytes for FedAvg, SCAFFOLD, FedALS and boosting with each channel."""
    size, problem, tables = SIZES[scale], Recipe(ten_clients, (scale,)), Recipe(ten_clients, (scale, False))
    networks, boosting = _networks(size), _boosting(size)
    arms = [
        Arm(
            f"{method}, {name}",
            problem,
            algorithm,
            size.rounds,
            size.every,
            runtime="stacked",
            metrics=("up/",),
            channels=chain,
        )
        for method, algorithm in networks.items()
        for name, chain in CHANNELS.items()
    ]
    refused = _refused(boosting)
    possible = [name for name in CHANNELS if name not in refused]
    arms += [
        Arm(
            f"{BOOSTING}, {name}",
            tables,
            boosting,
            size.rounds,
            size.every,
            runtime="inline",
            metrics=("up/",),
            channels=CHANNELS[name],
        )
        for name in possible
    ]
    trials = trained(arms, size.seeds, context)
    checks = [check for method in networks for check in _exact(method, trials)]
    checks += _histograms(possible, refused, trials)
    kept = {**dict.fromkeys(networks, _KEPT), BOOSTING: _BOOSTING_KEPT}
    checks += claims([check for method, names in kept.items() for check in _kept(method, names, trials)], scale)
    curves = {method: {n: _curve(trials[f"{method}, {n}"]) for n in CHANNELS} for method in networks}
    curves[BOOSTING] = {name: _curve(trials[f"{BOOSTING}, {name}"]) for name in possible}
    seeds = "1 seed" if len(size.seeds) == 1 else f"mean of {len(size.seeds)} seeds"
    side = tables().federation.info.shape[-1]
    about = (
        f"{problem().about}; {size.rounds} rounds of 10 steps, {seeds}; dots: the last round.\nBoosting: a tree of "
        f"depth {boosting.depth} per class and round, pictures of {side} x {side}; it refuses channels with feedback."
    )
    figure = traffic_figure("What compression saves", curves, about)
    return context.result(checks, {"megabytes": figure}, _numbers(trials) | {"refused": refused})


def _networks(size: Size) -> dict[str, pl.Algorithm]:
    common: dict[str, Any] = {"lr": size.lr, "steps": 10, "batch": 32}
    return {
        "FedAvg": pl.FedAvg(**common),
        "SCAFFOLD": pl.Scaffold(**common),
        "FedALS": pl.FedALS(alpha=4, keep=False, **common),
    }


def _boosting(size: Size) -> pl.HistogramBoosting:
    """With a penalty on leaf values: Newton steps leap where second derivatives are rounded to almost nothing."""
    return pl.HistogramBoosting(
        lr=0.3, depth=3, l2=1.0, bins=16, min_leaf=size.leaf, columns=0.25, ranges=((0.0, 1.0),), real=True
    )


def _refused(method: pl.Algorithm) -> dict[str, str]:
    """Why a method cannot be run with channels, by their names."""
    reasons = {}
    for name, chain in CHANNELS.items():
        try:
            pl.channels.Channels.of(method, chain)
        except pl.InputError as error:
            reasons[name] = str(error)
    return reasons


def _exact(method: str, trials: Mapping[str, Sequence[ArmRun]]) -> list[Check]:
    """What must hold at any scale: bytes without channels are counted right, and each sends as little as it says."""
    plain = trials[f"{method}, {NONE}"][0]
    others = [trials[f"{method}, {name}"][0] for name in CHANNELS if name != NONE]
    raw = max(abs(trial.metrics["up/raw/bytes"] - plain.metrics["up/bytes"]).max() for trial in others)
    largest = max(_sent(trial) for trial in others) / _sent(plain)
    limit = 0.65 if method == "SCAFFOLD" else 0.3
    return [
        holds(f"{method}: trains without channels", not plain.diverged, "finite", "finite"),
        at_most(f"{method}: bytes without the channel, off by", raw, 0),
        at_most(f"{method}: the most that any channel sends of it", largest, limit),
    ]


def _histograms(
    possible: Sequence[str], refused: Mapping[str, str], trials: Mapping[str, Sequence[ArmRun]]
) -> list[Check]:
    """The same of boosting, from the second round on: in the first, bins are counted as they are."""
    others = [trials[f"{BOOSTING}, {name}"][0] for name in possible if name != NONE]
    largest = max(float((t.metrics["up/bytes"] / t.metrics["up/raw/bytes"])[1:].max()) for t in others)
    feedback = {name for name, chain in CHANNELS.items() if any(s.feedback or s.mirrored for s in chain.stages)}
    biased = [name for name in possible if not CHANNELS[name].unbiased]
    return [
        holds(
            f"{BOOSTING}: channels refused are those with feedback",
            set(refused) == feedback,
            len(refused),
            len(feedback),
        ),
        holds(f"{BOOSTING}: channels possible that are biased", not biased, len(biased), 0),
        at_most(f"{BOOSTING}: the most that any channel sends of it", largest, 0.15),
    ]


def _kept(method: str, names: Sequence[str], trials: Mapping[str, Sequence[ArmRun]]) -> list[Check]:
    """What channels promise about training."""
    limit = _accuracy(trials[f"{method}, {NONE}"]).value - CLOSE
    accuracies = {name: _accuracy(trials[f"{method}, {name}"]).value for name in names}
    return [at_least(f"{method}, {name}: accuracy", value, limit) for name, value in accuracies.items()]


def _sent(trial: ArmRun) -> float:
    return float(trial.metrics["up/bytes"].sum() / 1e6)


def _accuracy(trials: Sequence[ArmRun]) -> pl.report.SeedMean:
    return pl.report.SeedMean.of([trial.last(0.2) for trial in trials])


def _curve(trials: Sequence[ArmRun]) -> TrafficCurve:
    """Means over seeds, from the first round on: nothing has been sent before it."""
    sent = [np.cumsum(trial.metrics["up/bytes"])[trial.rounds[1:].astype(int) - 1] / 1e6 for trial in trials]
    return TrafficCurve(np.mean(sent, 0), np.mean([trial.accuracy[1:] for trial in trials], 0))


def _numbers(trials: Mapping[str, Sequence[ArmRun]]) -> dict[str, Any]:
    return {
        "arms": [
            {
                "arm": name,
                "accuracy": _accuracy(runs).plain(),
                "megabytes": _sent(runs[0]),
                "trials": [trial.plain() for trial in runs],
            }
            for name, runs in trials.items()
        ]
    }

"""The recipe behind paper 004's curves, as its authors' code has it, which differs from Table 4.

Five clients sorted by label; plain momentum 0.9 that runs through, weight decay 1e-4, the rate eta / (t/100 + 10) at
step t; flips and crops; ResNet-20 whose statistics are averaged with their layers; weights n_k / N. Pictures are
standardised per channel (theirs: with ImageNet's numbers), and a seed has an initial model of its own (theirs: one for
all). They evaluate the mean of all clients' models, every 100 steps, 4 steps after the head's average and 49 after the
body's. A round is one step here, so that every moment can be evaluated; periods count steps, and every step reports the
mean model, which changes nothing that clients do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import parley as pl
from parley_papers.harness import Scale, StudyContext
from parley_papers.training_problem import Recipe, TrainingProblem, halved, official_test
from parley_papers.trials import Arm, ArmRun, trained

CLIENTS = 5
OPTIONS = {"momentum": 0.9, "weight_decay": 1e-4}
"""Plain momentum; Table 4 says Nesterov's."""
Moment = Literal["authors", "after"]
MOMENTS: dict[Moment, str] = {"authors": "the authors' moment", "after": "right after an average"}
"""One step before all layers are averaged, 49 after the body was (the authors'), or the step that averages them."""
Statistics = Literal["averaged", "re-estimated"]
STATISTICS: tuple[Statistics, ...] = ("averaged", "re-estimated")
Gains = Mapping[tuple[str, Moment], pl.report.SeedMean]
"""A method's result less a rival's, by rival and moment."""
_SPREAD = 2000
"""Training samples that statistics are re-estimated from, from all clients alike."""


@dataclass(frozen=True)
class Length:
    """How long is trained at a scale and where results are taken; a round is a step."""

    tau: int
    alpha: int
    ends: tuple[int, int]
    """Steps, and steps after the one extension."""
    every: int
    """Steps between two evaluations, a multiple of tau ..."""
    last: int
    """... of which the last so many, up to an end, are the result."""
    curve: int
    """Steps between the points of a curve."""
    rates: tuple[float, ...]
    """eta; all arms choose from these, or are trained with each."""
    seeds: tuple[int, ...]
    re_estimated: bool = True
    """Whether results are also taken with re-estimated statistics."""

    def window(self, step: int) -> bool:
        """Whether a result is taken at this step."""
        return any(end - self.last * self.every < step <= end for end in self.ends) and step % self.every == 0


LENGTHS: dict[Scale, Length] = {
    "smoke": Length(2, 2, (8, 12), 4, 2, 4, (1 / 4, 1.0), (0, 1)),
    "cpu": Length(5, 10, (7000, 10_000), 100, 10, 500, (1 / 4, 1.0), (0, 1, 2)),
}
LENGTHS["paper"] = LENGTHS["cpu"]


class Moments(pl.Listener):
    """Test accuracy of the mean model at both moments, with its statistics as averaged and re-estimated.

    Metrics `moment/<moment>/<statistics>`, in the rounds that results are taken from.
    """

    length: ClassVar[Length] = LENGTHS["cpu"]

    def start(self, run: pl.Run, rounds: int) -> None:
        self.run = run
        self.mixture: Tensor | None = None

    def evaluate(self, number: int, state: pl.State) -> dict[str, pl.Metric] | None:
        for moment, ahead in (("after", 0), ("authors", 1)):
            if self.length.window(number + ahead):
                return {f"moment/{moment}/{how}": pl.Metric(value) for how, value in self._accuracies(state).items()}
        return None

    def _accuracies(self, state: pl.State) -> dict[Statistics, float]:
        run, test = self.run, self.run.federation.test
        assert test is not None
        module = deepcopy(run.task.network).eval()
        weights = run.learned.weights(run.learned.message(state))
        assert weights is not None
        module.load_state_dict(weights)
        averaged = accuracy(module, test)
        if not self.length.re_estimated:
            return {"averaged": averaged}
        if self.mixture is None:
            self.mixture = mixture(run.federation, _SPREAD)
        re_estimate(module, self.mixture)
        return {"averaged": averaged, "re-estimated": accuracy(module, test)}


class SmokeMoments(Moments):
    length = LENGTHS["smoke"]


def mixture(federation: pl.Federation, samples: int) -> Tensor:
    """Inputs from all clients alike, in one mixed order, evenly spaced in each client's own."""
    each = []
    for client in federation.ids:
        x = federation.client(client).x
        each.append(x[torch.linspace(0, len(x) - 1, min(samples // len(federation), len(x))).long()])
    pooled = torch.cat(each)
    return pooled[torch.from_numpy(pl.Key(0).fold("statistics").numpy().permutation(len(pooled)))]


@torch.no_grad()
def re_estimate(module: nn.Module, x: Tensor, batch: int = 500) -> None:
    """Replace the running statistics by the mean over batches of what the layers see now."""
    norms = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None
        layer.train()
    if norms:
        for part in x.split(batch):
            module(part)
    for layer in norms:
        layer.eval()


@torch.no_grad()
def accuracy(module: nn.Module, data: pl.ClientData, batch: int = 250) -> float:
    """The share of samples that a module in evaluation mode classifies correctly."""
    parts = zip(data.x.split(batch), data.y.split(batch), strict=True)
    right = sum(int((module(x).argmax(1) == y).sum()) for x, y in parts)
    return right / len(data)


def sorted_images(name: str, side: int, norm: pl.models.Norm = "batch") -> TrainingProblem:
    """A data set of images sorted by label and cut in five; settings are chosen on 20 training samples of each class.

    `side`: of the pictures, averaged over 2x2 pixels where it is half of theirs.
    """
    data = pl.data.digits() if name == "digits" else pl.data.load(name)
    if side != data.info.shape[1]:
        data = halved(data)
    test, (data, validation) = official_test(data), held_out(data, 20)
    dealt = data.split("sorted", CLIENTS, seed=0)
    # Clients' samples side by side in memory: a round of one step is too short to gather them anew.
    source = pl.data.InMemory(tuple(dealt.client(client) for client in dealt.ids))
    federation = pl.Federation(dealt.info, dealt.ids, source, test=test)
    titles = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "digits": "scikit-learn's digits"}
    words = f"{titles[name]} at {side}x{side}, ResNet-20{'' if norm == 'batch' else ' with GroupNorm'}, sorted by label"
    return TrainingProblem(
        federation,
        CroppedResNet(data.info.shape, data.info.outputs, norm),
        validation,
        test,
        CLIENTS,
        16 if name == "digits" else 64,
        words,
    )


def held_out(data: pl.Dataset, per_class: int) -> tuple[pl.Dataset, pl.ClientData]:
    """The data set without the first so many training samples of each class, and those."""
    labels = data.y.numpy()
    first = np.concatenate([np.flatnonzero(labels == label)[:per_class] for label in np.unique(labels)])
    kept = np.setdiff1d(np.arange(len(labels)), first)
    held, rest = torch.from_numpy(first), torch.from_numpy(kept)
    coarse = None if data.coarse is None else data.coarse[kept]
    return replace(data, x=data.x[rest], y=data.y[rest], coarse=coarse), pl.ClientData(data.x[held], data.y[held])


@dataclass(frozen=True)
class CroppedResNet:
    """ResNet-20 behind random flips and crops, with an eighth of the side as padding (4 pixels of 32)."""

    shape: tuple[int, ...]
    outputs: int
    norm: pl.models.Norm = "batch"

    def __call__(self) -> nn.Module:
        crop = pl.models.RandomCrop(self.shape[1], self.shape[1] // 8, standardise=False)
        return nn.Sequential(
            OrderedDict(crop=crop, network=pl.models.ResNet20(self.norm).build(self.shape, self.outputs))
        )


def authors_arm(name: str, problem: Recipe, head: int, body: int, moments: type[Moments] = Moments) -> Arm:
    """FedALS whose head and body are averaged every so many steps, without its rate; alike periods are FedAvg."""
    length = moments.length
    method = pl.FedALS(
        steps=1,
        batch=problem().batch,
        periods={"*.head.*": head, "*": body},
        report=1,
        schedule=pl.Inverse(),
        options=OPTIONS,
    )
    return Arm(
        name,
        problem,
        method,
        length.ends[0],
        length.curve,
        runtime="inline",
        weights="size",
        listeners=(moments,),
        metrics=("moment/",),
        extend=True,
    )


def by_seed(arms: Sequence[Arm], seeds: Sequence[int], context: StudyContext) -> dict[str, list[ArmRun]]:
    """All trials, those of one seed before those of the next, so that what is done is a comparison at any time."""
    trials: dict[str, list[ArmRun]] = {arm.name: [] for arm in arms}
    for seed in seeds:
        for name, runs in trained(arms, [seed], context, what=f"training, seed {seed}").items():
            trials[name] += runs
    return trials


def result(trial: ArmRun, length: Length, moment: Moment, statistics: Statistics, end: int) -> float:
    """The mean accuracy over the last evaluations up to an end; 0 after divergence."""
    values = trial.metrics.get(f"moment/{moment}/{statistics}")
    if values is None:
        return 0.0
    measured = [step for step in range(1, trial.arm.rounds + 1) if length.window(step)]
    chosen = [
        value for step, value in zip(measured, values, strict=True) if end - length.last * length.every < step <= end
    ]
    return float(np.mean(chosen))


def results(
    trials: Mapping[str, list[ArmRun]], length: Length, end: int
) -> dict[str, dict[tuple[Moment, Statistics], list[float]]]:
    """By arm, moment and statistics: a result for each seed."""
    return {
        name: {(m, s): [result(trial, length, m, s, end) for trial in runs] for m in MOMENTS for s in STATISTICS}
        for name, runs in trials.items()
    }


def gains_over(
    rivals: Sequence[str], method: str, trials: Mapping[str, list[ArmRun]], length: Length, end: int, how: Statistics
) -> Gains:
    """The method's results less each rival's, seed by seed."""
    measured = results(trials, length, end)
    means = {
        (name, moment): pl.report.SeedMean.of(gains[moment, how])
        for name, gains in measured.items()
        for moment in MOMENTS
    }
    return {(rival, moment): means[method, moment] - means[rival, moment] for rival in rivals for moment in MOMENTS}

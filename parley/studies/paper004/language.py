"""Paper 004, Figure 3 and Table 1's last row: fine-tuning OPT on MultiNLI's sentence pairs, sorted by genre or iid.

AdamW with the step size eta/(t/100 + 10) and weight decay 1e-4, tau = 5, alpha = 10; phi is the first 10 of OPT-125M's
12 blocks. Scale `paper` reads OPT-125M from the folder or hub name in $PARLEY_OPT (docs/models.md tells how to get
.safetensors files). Scale `cpu` has no pretrained weights: a small random OPT learns hashed words from scratch, so it
can only show the shape. Control variates are defined for SGD; with AdamW there is no SCAFFOLD here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from parley.algorithms.fedals import FedALS
from parley.data import IID, ClientData, DataInfo, Dataset, Sorted, multinli
from parley.learn.schedules import Inverse
from parley.models.hugging_face import HfCausal
from parley.studies.curves import Line, lines
from parley.studies.harness import Context, Result, Scale, at_least, at_most, study
from parley.studies.paper004.summary import Mean
from parley.studies.problem import Problem, follow, made_up_text, official_test, rows
from parley.studies.rates import best_rates
from parley.studies.spread import spread
from parley.theory.theta import Array

CLIENTS, TAU, TUNING_SEED = 5, 5, 1000
BEHIND = 1.0
"""FedALS's last loss over FedAvg's where data are sorted by genre, at most."""
SAME = 0.02
"""The same where data are iid: apart from 1, at most."""
WEIGHTS = "facebook/opt-125m"
"""What scale paper fine-tunes unless $PARLEY_OPT names something else."""


@dataclass(frozen=True)
class _Size:
    rates: tuple[float, ...]
    """eta, which is divided by 10 in the first step."""
    rounds: int
    every: int
    seeds: tuple[int, ...]
    alpha: int
    layers: int
    """Blocks in phi."""


_SIZES: dict[Scale, _Size] = {
    "smoke": _Size((0.125, 0.25), 8, 4, (0,), 2, 1),
    "cpu": _Size((1 / 32, 1 / 16, 1 / 8), 100, 10, (0, 1, 2), 10, 3),
    "paper": _Size(tuple(0.01 * 2.0**k for k in range(-5, 4)), 4000, 100, tuple(range(20)), 10, 10),
}
_WORDS: dict[Scale, str] = {
    "smoke": "made-up text, an OPT of two blocks", "cpu": "hashed MultiNLI, a small random OPT, 100 rounds, 3 seeds",
    "paper": "MultiNLI, OPT-125M, 4000 rounds (iid 2000), 20 seeds",
}  # fmt: skip


@dataclass(frozen=True)
class _Arm:
    alpha: int
    iid: bool
    lr: float = 0.0

    @property
    def name(self) -> str:
        return "FedAvg" if self.alpha == 1 else "FedALS"


@dataclass(frozen=True)
class _Job:
    scale: Scale
    arm: _Arm
    seed: int
    rounds: int
    told: bool = True


@dataclass(frozen=True, eq=False)
class _Trial:
    job: _Job
    rounds: Array
    accuracy: Array
    loss: Array


@study("004/fig3", scales=_WORDS)
def fig3(scale: Scale, context: Context) -> Result:
    """Fine-tuning a language model, FedALS is not behind FedAvg where genres differ and equal where data are iid."""
    size = _SIZES[scale]
    arms = [_Arm(alpha, iid) for iid in (False, True) for alpha in (1, size.alpha)]
    trials = _compared(scale, arms, context)
    last = {arm: Mean.of([float(trial.loss[-1]) for trial in own]) for arm, own in trials.items()}
    fallen = min(trial.loss[0] - trial.loss[-1] for own in trials.values() for trial in own)
    checks = [at_least("least fall of the test loss", float(fallen), 0.1)]
    sorted_, iid = (last[arms[place + 1]].value / last[arms[place]].value for place in (0, 2))
    if scale != "smoke":
        checks.append(at_most("sorted by genre: FedALS's last loss over FedAvg's", sorted_, BEHIND))
        checks.append(at_most("iid: the same ratio, apart from 1", abs(iid - 1), SAME))
    panels = {
        title: [Line(arm.name, trials[arm], colour) for colour, arm in enumerate(arms[place : place + 2])]
        for title, place in {"Test loss, sorted by genre": 0, "Test loss, iid": 2}.items()
    }
    data = {
        f"{arm.name}, {'iid' if arm.iid else 'sorted'}": {
            "lr": rate, "last loss": last[arm].plain(), "rounds": trials[arm][0].rounds,
            "loss": [trial.loss for trial in trials[arm]],
        }
        for arm, rate in zip(arms, (trials[arm][0].job.arm.lr for arm in arms), strict=True)
    }  # fmt: skip
    return context.result(checks, {"loss": lines(panels, "loss", _problem(scale, False).about)}, data)


@lru_cache(maxsize=2)
def _problem(scale: Scale, iid: bool) -> Problem:
    data, model, batch, words = _ingredients(scale)
    test, choose = official_test(data), len(official_test(data)) // 4
    told = rows(test, choose, choose + 1000 if scale == "cpu" else None)
    federation = data.split(IID() if iid else Sorted(by="group"), CLIENTS, seed=0)
    return Problem(federation, model, rows(test, 0, choose), told, CLIENTS, batch, words)


@lru_cache(maxsize=1)
def _ingredients(scale: Scale) -> tuple[Dataset, HfCausal, int, str]:
    if scale == "smoke":
        tiny = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 16}
        return _made_up(), HfCausal(config=tiny), 8, "made-up text, a random OPT of two blocks"
    if scale == "cpu":
        small = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "ffn_dim": 64}
        data = multinli(length=16, vocabulary=512, targets="next-token")
        return data, HfCausal(config=small), 16, "MultiNLI in 512 hashed words, a random OPT of four blocks"
    weights = os.environ.get("PARLEY_OPT", WEIGHTS)
    data = multinli(length=128, targets="next-token", tokenizer=weights)
    return data, HfCausal(weights), 16, f"MultiNLI, {weights}"


def _made_up() -> Dataset:
    """Clients' phrases as genres; token 0 is padding, so all are moved by one."""
    clients = [ClientData(own.x + 1, own.y + 1) for own in made_up_text(CLIENTS).values()]
    x, y = (torch.cat([getattr(own, part) for own in clients]) for part in ("x", "y"))
    held = torch.arange(len(x)) % 5 == 0
    groups = np.repeat(np.arange(CLIENTS), len(clients[0]))
    return Dataset(
        DataInfo("made-up text", (10,), 13, "text", vocabulary=13), x[~held], y[~held], ClientData(x[held], y[held]),
        groups[~held.numpy()], tuple(map(str, range(CLIENTS))),
    )  # fmt: skip


def _perform(job: _Job) -> _Trial:
    size, problem = _SIZES[job.scale], _problem(job.scale, job.arm.iid)
    method = FedALS(
        lr=job.arm.lr, steps=TAU, batch=problem.batch, alpha=job.arm.alpha, layers=size.layers, optimizer="adamw",
        options={"weight_decay": 1e-4}, schedule=Inverse(),
    )  # fmt: skip
    course = follow(
        method, problem, problem.tell if job.told else problem.choose, rounds=job.rounds, every=size.every,
        seed=job.seed, runtime="inline",
    )  # fmt: skip
    return _Trial(job, course.rounds, course.accuracy, course.loss)


def _compared(scale: Scale, arms: Sequence[_Arm], context: Context) -> Mapping[_Arm, list[_Trial]]:
    """Every arm with its best rate and all seeds."""
    size = _SIZES[scale]

    def length(arm: _Arm) -> int:
        return size.rounds // 2 if arm.iid and scale == "paper" else size.rounds

    def scores(pairs: list[tuple[_Arm, float]]) -> list[float]:
        jobs = [_Job(scale, replace(arm, lr=lr), TUNING_SEED, length(arm), told=False) for arm, lr in pairs]
        found = [float(trial.loss[-1]) for trial in spread(_perform, jobs, context, "choosing rates")]
        return [-loss if np.isfinite(loss) else -np.inf for loss in found]

    rates = best_rates(arms, size.rates, scores, further=0 if scale == "smoke" else 4)
    jobs = [_Job(scale, replace(arm, lr=rates[arm]), seed, length(arm)) for arm in arms for seed in size.seeds]
    found = iter(spread(_perform, jobs, context, "training"))
    return {arm: [next(found) for _ in size.seeds] for arm in arms}

"""Paper 004, Figure 3 and Table 1's last row: fine-tuning OPT on MultiNLI's sentence pairs, sorted by genre or iid.

AdamW with the step size eta/(t/100 + 10) and weight decay 1e-4, tau = 5, alpha = 10; phi is the first 10 of OPT-125M's
12 blocks. Scale `paper` reads OPT-125M from the folder or hub name in $PARLEY_OPT (docs/models.md tells how to get
.safetensors files). Scale `cpu` has no pretrained weights: a small random OPT learns hashed words from scratch, so it
can only show the shape. Control variates are defined for SGD; with AdamW there is no SCAFFOLD here.

`004/fig3-lora` trains adapters (LoRA) of a real language model, the story teller of 260,000 weights of llama2.c in
$PARLEY_DATA/llama, for 5000 steps; the curves of the authors, whose model is OPT-1.3b, cross at 4800.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

import parley as pl
from parley_papers.figures.training_curves import ArmCurve, training_curves
from parley_papers.harness import Scale, StudyContext, StudyResult, at_least, at_most, claims, study
from parley_papers.training_problem import Recipe, TrainingProblem, between, made_up_text, official_test
from parley_papers.trials import Arm, tuned_and_trained

CLIENTS, TAU = 5, 5
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
    "smoke": "made-up text, an OPT of two blocks",
    "cpu": "hashed MultiNLI, a small random OPT, 100 rounds, 3 seeds",
    "paper": "MultiNLI, OPT-125M, 4000 rounds (iid 2000), 20 seeds",
}


_LORA_SIZES: dict[Scale, _Size] = {
    "smoke": _Size((0.125, 0.25), 8, 4, (0,), 2, 1),
    "cpu": _Size((1 / 32, 1 / 8), 1000, 50, (0, 1, 2), 10, 4),
}


@study("004/fig3", scales=_WORDS)
def fig3(scale: Scale, context: StudyContext) -> StudyResult:
    """Fine-tuning a language model, FedALS is not behind FedAvg where genres differ and equal where data are iid."""
    return _compared(scale, context, _SIZES[scale], lora=False)


@study(
    "004/fig3-lora",
    scales={
        "smoke": "made-up text, an OPT of two blocks",
        "cpu": "MultiNLI, adapters of stories260K, 5000 steps, 3 seeds; 5 hours",
    },
)
def fig3_lora(scale: Scale, context: StudyContext) -> StudyResult:
    """Training adapters of a real language model, FedALS is not behind FedAvg where genres differ and equal iid."""
    return _compared(scale, context, _LORA_SIZES[scale], lora=True)


def _compared(scale: Scale, context: StudyContext, size: _Size, lora: bool) -> StudyResult:
    ways = [(name, how) for how in ("sorted", "iid") for name in ("FedAvg", "FedALS")]
    arms = {(name, how): _arm(scale, size, name, how, lora) for name, how in ways}
    by_name = tuned_and_trained(
        list(arms.values()),
        size.rates,
        lambda trial: -float(trial.loss[-1]),
        size.seeds,
        context,
        further=0 if scale == "smoke" or lora else 4,
    )
    trials = {which: by_name[arm.name] for which, arm in arms.items()}
    last = {which: pl.report.SeedMean.of([float(trial.loss[-1]) for trial in runs]) for which, runs in trials.items()}
    fallen = min(trial.loss[0] - trial.loss[-1] for runs in trials.values() for trial in runs)
    # Adapters of random weights have little to build on.
    checks = [at_least("least fall of the test loss", float(fallen), 0.0 if lora and scale == "smoke" else 0.1)]
    by_genre, iid = (last["FedALS", how].value / last["FedAvg", how].value for how in ("sorted", "iid"))
    shape = [
        at_most("sorted by genre: FedALS's last loss over FedAvg's", by_genre, BEHIND),
        at_most("iid: the same ratio, apart from 1", abs(iid - 1), SAME),
    ]
    panels = {
        title: [ArmCurve(name, trials[name, how], colour) for colour, name in enumerate(("FedAvg", "FedALS"))]
        for title, how in {"Test loss, sorted by genre": "sorted", "Test loss, iid": "iid"}.items()
    }
    data = {
        arms[which].name: {"last loss": last[which].plain(), "trials": [trial.plain() for trial in runs]}
        for which, runs in trials.items()
    }
    about = arms["FedAvg", "sorted"].problem().about
    return context.result([*checks, *claims(shape, scale)], {"loss": training_curves(panels, "loss", about)}, data)


def _arm(scale: Scale, size: _Size, name: str, how: str, lora: bool) -> Arm:
    """FedAvg is FedALS with alpha = 1; the rate is chosen later."""
    problem = Recipe(_problem, (scale, how == "iid", lora))
    method = pl.FedALS(
        steps=TAU,
        batch=problem().batch,
        alpha=1 if name == "FedAvg" else size.alpha,
        layers=size.layers,
        optimizer="adamw",
        options={"weight_decay": 1e-4},
        schedule=pl.Inverse(),
    )
    rounds = size.rounds // 2 if how == "iid" and scale == "paper" else size.rounds
    return Arm(f"{name}, {how}", problem, method, rounds, size.every, runtime="inline")


def _problem(scale: Scale, iid: bool, lora: bool) -> TrainingProblem:
    data, model, batch, words = _ingredients(scale, lora)
    test, first = official_test(data), len(official_test(data)) // 4
    measured = between(test, first, first + 1000 if scale == "cpu" else None)
    federation = data.split(pl.IID() if iid else pl.Sorted(by="group"), CLIENTS, seed=0)
    return TrainingProblem(federation, model, between(test, 0, first), measured, CLIENTS, batch, words)


@lru_cache(maxsize=1)
def _ingredients(scale: Scale, lora: bool) -> tuple[pl.Dataset, pl.models.HfCausal, int, str]:
    adapters = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]} if lora else {}
    if scale == "smoke":
        tiny = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 16}
        return _made_up(), pl.models.HfCausal(config=tiny, lora=adapters), 8, "made-up text, a random OPT of two blocks"
    if lora:
        folder = _stories()
        data = pl.data.multinli(length=48, targets="next-token", tokenizer=folder)
        return data, pl.models.HfCausal(folder, lora=adapters), 16, "MultiNLI, adapters of rank 8 of stories260K"
    if scale == "cpu":
        small = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "ffn_dim": 64}
        data = pl.data.multinli(length=16, vocabulary=512, targets="next-token")
        return data, pl.models.HfCausal(config=small), 16, "MultiNLI in 512 hashed words, a random OPT of four blocks"
    weights = os.environ.get("PARLEY_OPT", WEIGHTS)
    data = pl.data.multinli(length=128, targets="next-token", tokenizer=weights)
    return data, pl.models.HfCausal(weights), 16, f"MultiNLI, {weights}"


def _stories() -> str:
    """The folder of the converted story teller, beside its files."""
    source = pl.data.cache_dir() / "llama"
    missing = [name for name in ("stories260K.bin", "tok512.bin") if not (source / name).is_file()]
    if missing:
        raise pl.InputError(f"there is no {missing[0]} in '{source}'; get it from huggingface.co/karpathy/tinyllamas.")
    folder = source / "transformers"
    if not (folder / "tokenizer_config.json").is_file():
        pl.models.convert_llama2c(source / "stories260K.bin", source / "tok512.bin", folder)
    return str(folder)


def _made_up() -> pl.Dataset:
    """Clients' phrases as genres; token 0 is padding, so all are moved by one."""
    clients = [pl.ClientData(client.x + 1, client.y + 1) for client in made_up_text(CLIENTS).values()]
    x, y = (torch.cat([getattr(client, part) for client in clients]) for part in ("x", "y"))
    held = torch.arange(len(x)) % 5 == 0
    groups = np.repeat(np.arange(CLIENTS), len(clients[0]))
    return pl.Dataset(
        pl.DataInfo("made-up text", (10,), 13, "text", vocabulary=13),
        x[~held],
        y[~held],
        pl.ClientData(x[held], y[held]),
        groups[~held.numpy()],
        tuple(map(str, range(CLIENTS))),
    )

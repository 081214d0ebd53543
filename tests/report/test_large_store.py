"""A store of 200 runs of 1,000 rounds with 100 clients: compared and reported in seconds, on a page below 3 MB."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore

RUNS, ROUNDS, CLIENTS = 200, 1000, 100


def fill(store: RunStore, number: int) -> None:
    """One run with everything that training records; every client is judged and heard in every round."""
    random, rounds = np.random.default_rng(number), np.arange(ROUNDS + 1)
    names = [f"client-{i}" for i in range(CLIENTS)]
    curve = 1 - np.exp(-rounds / (100 + number)) + 0.01 * random.standard_normal(ROUNDS + 1)
    accuracy = np.round(np.clip(curve[:, None] + 0.1 * random.standard_normal((ROUNDS + 1, CLIENTS)), 0, 1) * 50) / 50
    loss = np.float32(2.3 * np.exp(-rounds / 200)[:, None] + 0.05 * random.random((ROUNDS + 1, CLIENTS))).astype(float)
    sent = Metric(19_000.0 * CLIENTS, dict.fromkeys(names, 19_000.0))
    records = []
    for n in rounds.tolist():
        losses = Metric(float(loss[n].mean()), dict(zip(names, loss[n].tolist(), strict=True)))
        metrics = {
            "central/accuracy": Metric(float(curve[n])),
            "central/loss": Metric(float(loss[n].mean())),
            "clients/accuracy": Metric(float(accuracy[n].mean()), dict(zip(names, accuracy[n].tolist(), strict=True))),
            "clients/loss": losses,
            "evaluate/seconds": Metric(0.01),
        }
        if n:
            metrics |= {
                "up/bytes": sent,
                "down/bytes": sent,
                "cohort": Metric(float(CLIENTS)),
                "train/loss": losses,
                "seconds": Metric(0.02),
            }
        records.append(RoundRecord(n, metrics))
    run = store.create("fedavg-digits", config(number, 1), "")
    store.commit(run, records, status="finished", summary={"central/accuracy": float(curve[-1])})


def config(number: int, seeds: int) -> dict[str, Any]:
    """So many seeds of each method."""
    method, seed = divmod(number, seeds)
    return {
        "name": "fedavg-digits",
        "seed": seed,
        "rounds": ROUNDS,
        "model": {"name": "linear"},
        "data": {"name": "digits", "clients": CLIENTS, "partition": {"name": "dirichlet", "alpha": 0.1}, "seed": seed},
        "algorithm": {"name": "fedavg", "lr": 0.001 * (method + 1)},
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_long_runs_are_answered_in_seconds(tmp_path: Path) -> None:
    with RunStore(tmp_path / "runs.db") as store:
        for number in range(RUNS):
            fill(store, number)
    measure(tmp_path, 1)
    with RunStore(tmp_path / "runs.db") as store:
        for number, info in enumerate(store.runs()):
            store.describe(info.id, config(number, 5))
    measure(tmp_path, 5)


def measure(folder: Path, seeds: int) -> None:
    """Runs of so many seeds each, by the clock."""
    call = [sys.executable, "-c", "from parley.cli.main import main; main()"]
    for words in (["report", "--out", "r.html"], ["compare"], ["runs"]):
        begin = os.times()
        subprocess.run([*call, *words, "--store", "runs.db"], cwd=folder, check=True, capture_output=True)
        end = os.times()
        took = end.children_user + end.children_system - begin.children_user - begin.children_system
        print(f"parley {words[0]}, {RUNS // seeds} groups of {seeds}: {took:.2f} s")
        assert took < 5.0
    size = (folder / "r.html").stat().st_size
    print(f"page: {size / 1e6:.2f} MB")
    assert size < 3e6

"""Nothing is proportional to the population: many clients with memories, few of them in RAM."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from parley.algorithms.averaging.baselines import LocalOnly
from parley.algorithms.averaging.scaffold import Scaffold
from parley.core.message import Memory
from parley.core.tree import nbytes
from parley.core.wire import decode
from parley.data import ClientData, DataInfo, Federation
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Sampling
from parley.models import mlp
from parley.runtimes.inline import Inline
from parley.store.memories import Memories
from parley.study.train import train

CLIENTS, COHORT = 2000, 50


def crowd(clients: int = CLIENTS, test_fraction: float = 0.0) -> Federation:
    """Clients of four samples with 64 features, made when they are asked for."""

    def make(number: int) -> ClientData:
        random = np.random.default_rng(number)
        x = random.standard_normal((4, 64), dtype=np.float32)
        return ClientData(torch.from_numpy(x), torch.from_numpy(random.integers(10, size=4)))

    info = DataInfo("crowd", (64,), 10, "classification")
    return Federation.from_function(clients, make, 4, info=info, test_fraction=test_fraction)


class Watch(Listener):
    """How many memories that were read from disk, and how many that were accepted, are alive after each round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[weakref.ref[Tensor]] = []
        self.alive: list[int] = []
        self.held: list[int] = []
        self.resident: list[int] = []
        monkeypatch.setattr("parley.store.memory_file.decode", self.decode)

    def decode(self, data: bytes, kind: type[Memory], **options: int) -> Memory:
        memory = decode(data, kind, **options)
        self.read.append(weakref.ref(next(iter(memory.tensors.values()))))
        self.read = [one for one in self.read if one() is not None]
        self.alive.append(len(self.read))
        return memory

    def start(self, run: Run, rounds: int) -> None:
        self.run = run

    def round(self, record) -> None:
        self.held.append(len(self.run.memories._live))
        self.resident.append(psutil.Process().memory_info().rss)


@pytest.mark.parametrize("stored", [True, False])
def test_memories_in_ram_are_those_of_the_cohort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool):
    """SCAFFOLD's variates of all clients are 60 MB, twenty times what may stay in RAM.

    A checkpoint after every round: how many old variates lie between two later ones depends on the machine's speed.
    """
    monkeypatch.setattr("parley.store.memories.BUDGET", 0)
    watch = Watch(monkeypatch)
    run = train(
        Scaffold(lr=0.1, batch=None, steps=1),
        crowd(),
        model=mlp(100),
        rounds=40,
        cohort=Sampling(COHORT, weights="uniform"),
        listeners=[watch],
        runtime="stacked",
        store=tmp_path / "runs.db" if stored else None,
        checkpoint=0.0,
    )
    assert max(watch.alive) <= COHORT
    assert max(watch.held) == 0  # nothing stays from round to round
    clients = list(run.clients_with_memory())
    one = nbytes(run.memory(clients[0]).tensors)
    assert one * len(clients) > 35e6
    assert max(watch.resident) - watch.resident[4] < 20e6
    # The server's variate is the mean of all clients': every one of them is the right one.
    mean = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in run.state["c"].items()}
    for client in clients:
        for name, value in run.memory(client)["c_i"].items():
            mean[name] += value / CLIENTS
    for name, value in run.state["c"].items():
        torch.testing.assert_close(value.double(), mean[name], rtol=1e-4, atol=1e-7)
    assert watch.alive[-1] == 1
    if stored:
        size = sum(path.stat().st_size for path in tmp_path.rglob("records"))
        assert size < 1.1 * (one + 1000) * (len(clients) + 4 * COHORT)


def test_personal_models_are_evaluated_some_at_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("parley.store.memories.BUDGET", 0)
    limit = 10 * 30_000  # ten memories
    asked: list[int] = []
    original = Inline.evaluate

    def evaluate(self, checks):
        asked.append(len({check.client for check in checks}))
        return original(self, checks)

    monkeypatch.setattr(Inline, "evaluate", evaluate)
    watch = Watch(monkeypatch)
    say = {"model": mlp(100), "rounds": 2, "cohort": 100, "runtime": "stacked", "seed": 3}
    evaluation = Evaluation(clients="all", every=2)
    whole = train(LocalOnly(lr=0.1), crowd(200, 0.25), evaluation=evaluation, **say)
    assert asked[-1] == 200
    monkeypatch.setattr("parley.engine.evaluation._HELD", limit)
    watch.alive.clear()
    asked.clear()
    run = train(LocalOnly(lr=0.1), crowd(200, 0.25), evaluation=evaluation, listeners=[watch], **say)
    assert asked[0] == 200  # before training nobody has a memory
    assert max(asked[1:]) < 50
    assert sum(asked[1:]) == 200
    assert max(watch.alive) <= 100  # the cohort's
    assert run.clients("clients/loss") == whole.clients("clients/loss")


def test_opening_reads_no_memories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    memories = Memories(tmp_path, budget=0)
    memories.accept(1, {str(i): Memory.of(x=torch.zeros(100)) for i in range(3000)})
    memories.save()
    memories.committed()
    memories.close()
    watch = Watch(monkeypatch)
    again = Memories(tmp_path)
    again.resume(1)
    assert watch.alive == []
    assert "2999" in again
    assert len(again["2999"].tensor("x")) == 100
    assert watch.alive == [1]

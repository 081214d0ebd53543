"""The training process of SCAFFOLD-100K: `python -m parley_benchmarks.memory_child FOLDER CROWD SEED`, JSON lines out.

It starts the run in FOLDER, or resumes it where there is one. After the last round it reads all memories.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from parley import (
    ClientData,
    Cohort,
    DataInfo,
    Evaluation,
    Faults,
    Federation,
    Key,
    Listener,
    RoundRecord,
    Run,
    RunStore,
    Sampling,
    Scaffold,
    make_task,
)
from parley.engine.checkpointer import Checkpointer
from parley.engine.evaluation import Evaluator
from parley.engine.loop import Loop
from parley.engine.sampling import Sampler
from parley.runtimes import Job, open_runtime
from parley.store.memories import Memories
from parley_benchmarks.contestants.models import build
from parley_benchmarks.harness import peak_resident
from parley_benchmarks.many_memories import Population

SAMPLES = 5


@dataclass
class Visits(Sampler):
    """New clients by turns, the rest of a round's drawn from those already visited."""

    population: Population | None = None

    def draw(self, number: int) -> Cohort:
        assert self.population is not None
        known = min((number - 1) * self.population.new, self.population.clients)
        new = np.arange(known, min(known + self.population.new, self.population.clients))
        again = min(known, self.population.cohort - len(new))
        old = self.key.fold("cohort", number).numpy().choice(known, again, replace=False) if again else new[:0]
        ids = tuple(str(i) for i in sorted([*new.tolist(), *old.tolist()]))
        return Cohort(ids, (1 / len(ids),) * len(ids))


class Teller(Listener):
    """A line per round: its seconds from end to end, what is resident after it, and at most so far."""

    def __init__(self) -> None:
        self.began, self.spent = time.perf_counter(), time.process_time()

    def round(self, record: RoundRecord) -> None:
        now, spent = time.perf_counter(), time.process_time()
        tell(
            round=record.number,
            seconds=now - self.began,
            cpu=spent - self.spent,
            resident=psutil.Process().memory_info().rss,
            peak=peak_resident(),
        )
        self.began, self.spent = now, spent


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def client(number: int) -> ClientData:
    random = np.random.default_rng(number)
    x = random.standard_normal((SAMPLES, 784), dtype=np.float32)
    return ClientData(torch.from_numpy(x), torch.from_numpy(random.integers(10, size=SAMPLES)))


def main(folder: Path, population: Population, seed: int) -> None:
    info = DataInfo("crowd", (784,), 10, "classification")
    data = Federation.from_function(population.clients, client, SAMPLES, info=info)
    key, method = Key(seed), Scaffold(lr=0.05, steps=1, batch=None)
    task = make_task(data, build("mlp", (784,), 10, dropout=False), seed)
    job = Job(method, task, data)
    run = Run(method, task, data, method.init(task, key.fold("init")))
    runtime, _ = open_runtime("stacked", job)
    with RunStore(folder / "runs.db") as store:
        began = time.perf_counter()
        known = store.runs()
        run.id = known[0].id if known else store.create("crowd", {}, "")
        store.claim(run.id)
        checkpointer = Checkpointer(store, run.id, population.checkpoint)
        memories = run.memories = Memories(checkpointer.memory_folder)
        if known and checkpointer.restore(run, memories):
            tell(resume=time.perf_counter() - began)
        Loop(
            job,
            run,
            runtime,
            Visits(data, Sampling(), Faults(), key.fold("sampling"), population=population),
            Evaluator(job, Evaluation(central=False), key),
            Faults(),
            key,
            population.rounds,
            memories,
            checkpointer,
            [Teller()],
        ).go()
        memories.rest(population.rounds)
        tell(**verified(run), peak=peak_resident())
        runtime.close()


def verified(run: Run) -> dict[str, float]:
    """How many clients have a memory, and how far the server's variate is from the mean of theirs."""
    count, total = 0, {name: torch.zeros_like(value, dtype=torch.float64) for name, value in run.state["c"].items()}
    for count, id in enumerate(run.clients_with_memory(), 1):  # noqa: B007
        for name, value in run.memory(id)["c_i"].items():
            total[name] += value
    c = torch.cat([value.double().flatten() for value in run.state["c"].values()])
    mean = torch.cat([total[name].flatten() for name in run.state["c"]]) / len(run.federation)
    return {"memories": count, "difference": float((c - mean).norm() / c.norm())}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Population(**json.loads(sys.argv[2])), int(sys.argv[3]))

"""FEDALS-STEP: what a step of FedALS costs beside a step of FedAvg, and what the two send.

All variants take the same steps on the same data in one process, round by round in turn, each from an open runtime of
its own. A chunk is alpha rounds, so that every chunk of FedALS has one average of the representation; ratios are taken
chunk by chunk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch

from parley import (
    Algorithm,
    ClientData,
    DataInfo,
    Evaluation,
    Faults,
    FedALS,
    FedAvg,
    Federation,
    InputError,
    Key,
    Message,
    Run,
    Sampling,
    make_task,
)
from parley.core.wire import wire_size
from parley.engine.evaluation import Evaluator
from parley.engine.loop import Loop
from parley.engine.sampling import Sampler
from parley.runtimes import Job, open_runtime
from parley.store.memories import Memories
from parley_benchmarks.contestants.models import build
from parley_benchmarks.harness import peak_resident
from parley_benchmarks.result import GIGA, BenchResult, Claim, Standing, machine
from parley_benchmarks.workloads import BenchScale, available_cpus

NAME = "FEDALS-STEP"
ABOUT = (
    "FedAvg and FedALS (alpha 10, all but the last layer), 5 steps a round: MLP 784-100-10 stacked, CNN in processes"
)
BOUND = 1.05
"""FedALS may take at most this many times FedAvg's time for the same steps."""
ALPHA, STEPS = 10, 5
HEAVY = {"momentum": 0.9}


@dataclass(frozen=True)
class Arrangement:
    """A model with the runtime that suits it; every client takes part in every round."""

    model: str
    runtime: str
    shape: tuple[int, ...]
    clients: int
    batch: int
    chunks: int


ARRANGEMENTS = (
    Arrangement("mlp", "stacked", (784,), clients=20, batch=50, chunks=9),
    Arrangement("cnn", "pool", (3, 32, 32), clients=4, batch=20, chunks=5),
)


def variants(batch: int) -> dict[str, Algorithm]:
    """Pairs to be compared: plain SGD, momentum that starts afresh each round, momentum that runs through.

    FedAvg with momentum that runs through is FedALS with alpha = 1, where every part is averaged in every round.
    """
    same: dict[str, Any] = {"lr": 0.01, "steps": STEPS, "batch": batch}
    heavy = same | {"options": HEAVY}
    return {
        "fedavg": FedAvg(**same),
        "fedals": FedALS(**same, alpha=ALPHA),
        "fedavg momentum": FedAvg(**heavy),
        "fedals momentum": FedALS(**heavy, alpha=ALPHA, keep=False),
        "fedavg kept momentum": FedALS(**heavy, alpha=1),
        "fedals kept momentum": FedALS(**heavy, alpha=ALPHA),
    }


@dataclass
class Lane:
    """One variant at work."""

    loop: Loop
    chunks: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    sent: int = 0
    """Bytes from clients in the timed rounds."""

    def begin(self) -> None:
        """A chunk begins."""
        self.chunks.append(0.0)
        self.cpu.append(0.0)

    def step(self, number: int) -> None:
        """A round of the present chunk."""
        spent, began = _processor_seconds(), time.perf_counter()
        record = self.loop.step(number)
        self.chunks[-1] += time.perf_counter() - began
        self.cpu[-1] += _processor_seconds() - spent
        self.sent += int(record.metrics["up/bytes"].value)


def measure(
    scale: BenchScale = "full", cores: int | None = None, seed: int = 0, say: Callable[[str], None] = lambda _: None
) -> BenchResult:
    """Time all variants of both arrangements and judge the ratios and the bytes."""
    available = len(available_cpus())
    if cores is not None and not 1 <= cores <= available:
        raise InputError(f"{NAME} cannot run on {cores} cores; this machine offers 1 to {available}.")
    workers = cores or min(2, available)
    standings: list[Standing] = []
    checks: list[Claim] = []
    for plan in ARRANGEMENTS:
        chunks = plan.chunks if scale == "full" else 1
        batch, clients = (plan.batch, plan.clients) if scale == "full" else (4, 2)
        lanes = _race(plan, clients, batch, chunks, workers, seed, say)
        standings += [_standing(f"{plan.model} {name}", lane) for name, lane in lanes.items()]
        for kind in ("", " momentum", " kept momentum"):
            checks.append(_ratio(plan, lanes, f"fedals{kind}", f"fedavg{kind}", scale))
        checks.append(_bytes(plan, lanes, chunks, clients))
    return BenchResult(NAME, ABOUT, scale, workers, ALPHA, machine(), standings, checks)


def federation(shape: tuple[int, ...], clients: int, samples: int, seed: int) -> Federation:
    """Random numbers of the stated shape, equally many for every client."""
    random = np.random.default_rng(seed)
    data = {
        str(i): ClientData(
            torch.from_numpy(random.standard_normal((samples, *shape), dtype=np.float32)),
            torch.from_numpy(random.integers(10, size=samples)),
        )
        for i in range(clients)
    }
    return Federation.from_arrays(data, info=DataInfo("bench", shape, 10, "classification"))


def _race(
    plan: Arrangement, clients: int, batch: int, chunks: int, workers: int, seed: int, say: Callable[[str], None]
) -> dict[str, Lane]:
    data = federation(plan.shape, clients, 4 * batch, seed)
    with ExitStack() as stack:
        lanes: dict[str, Lane] = {}
        for name, algorithm in variants(batch).items():
            lane = lanes[name] = Lane(_loop(algorithm, data, plan, workers, chunks, seed))
            stack.callback(lane.loop.runtime.close)
            lane.begin()
            lane.step(ALPHA)  # untimed: an average of everything; workers are up and warm
            lanes[name] = Lane(lane.loop)
        order = list(lanes.values())
        for chunk in range(chunks):
            for lane in order:
                lane.begin()
            for number in range(1, ALPHA + 1):
                # The order rotates, so that nobody always inherits the same neighbour's caches.
                for lane in [*order[number % len(order) :], *order[: number % len(order)]]:
                    lane.step((chunk + 1) * ALPHA + number)
            ratio = lanes["fedals"].chunks[-1] / lanes["fedavg"].chunks[-1]
            say(f"{NAME}: {plan.model}, chunk {chunk + 1}/{chunks}, fedals takes {ratio:.3f} times fedavg's time")
    return lanes


def _loop(algorithm: Algorithm, data: Federation, plan: Arrangement, workers: int, chunks: int, seed: int) -> Loop:
    key = Key(seed)
    task = make_task(data, build(plan.model, plan.shape, 10, dropout=False), seed)
    job = Job(algorithm, task, data)
    runtime, _ = open_runtime(plan.runtime, job, workers)
    return Loop(
        job,
        Run(algorithm, task, data, algorithm.init(task, key)),
        runtime,
        Sampler(data, Sampling(), Faults(), key),
        Evaluator(job, Evaluation(central=False), key),
        Faults(),
        key,
        (chunks + 2) * ALPHA,
        Memories(),
    )


def _processor_seconds() -> float:
    """Of this process and its workers; those of other variants sleep meanwhile."""
    total = 0.0
    this = psutil.Process()
    for process in (this, *this.children()):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _standing(name: str, lane: Lane) -> Standing:
    rounds = [seconds / ALPHA for seconds in lane.chunks]
    return Standing(
        name=name,
        group=name,
        versions={"torch": torch.__version__},
        setup_seconds=0.0,
        median=median(rounds),
        fastest=min(rounds),
        slowest=max(rounds),
        per_chunk=rounds,
        cpu=median(lane.cpu) / ALPHA,
        peak_gb=peak_resident() / GIGA,
        early_difference=None,
        final_difference=None,
    )


def _ratio(plan: Arrangement, lanes: Mapping[str, Lane], who: str, against: str, scale: BenchScale) -> Claim:
    values = [ours / theirs for ours, theirs in zip(lanes[who].chunks, lanes[against].chunks, strict=True)]
    value = median(values)
    claim = f"{plan.model}: a step of {who} takes at most {BOUND:g} times one of {against}"
    return Claim(claim, value, BOUND, value <= BOUND if scale == "full" else None, min(values), max(values))


def _bytes(plan: Arrangement, lanes: Mapping[str, Lane], chunks: int, clients: int) -> Claim:
    """Clients send the head in every round and the rest in one of alpha: bytes of the wire format, to the byte."""
    lane = lanes["fedals"]
    method, task = lane.loop.job.algorithm, lane.loop.job.task
    assert isinstance(method, FedALS)
    x = task.initial()
    often = {name: x[name] for part in method.parts(task) if part.period == 1 for name in part.parameters}
    few, all_of_it = wire_size(Message.of(update=often)), wire_size(Message.of(update=x))
    claimed = chunks * clients * ((ALPHA - 1) * few + all_of_it)
    share = lane.sent / lanes["fedavg"].sent
    claim = f"{plan.model}: fedals sends what it claims, {share:.1%} of fedavg's bytes"
    return Claim(claim, lane.sent / claimed, 1.0, lane.sent == claimed)

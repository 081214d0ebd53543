"""SCAFFOLD-100K: 100,000 clients that each keep a control variate of 79,510 weights, in a process that stays small.

A child process trains with a stored run. Every round visits clients that were never visited and some that were, so that
memories are written, read and superseded throughout. When everyone has been visited the child is killed (SIGKILL);
another resumes the run, goes on for some rounds, and reads all memories one by one: the server's variate must be the
mean of all clients' (SCAFFOLD with uniform weights), which no lost, stale or mixed-up memory would leave true.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from parley import InputError, ParleyError
from parley_benchmarks.harness import terminable
from parley_benchmarks.result import GIGA, BenchResult, Claim, Standing, machine
from parley_benchmarks.workloads import BenchScale

NAME = "SCAFFOLD-100K"
ABOUT = (
    "100,000 clients, 500 a round, each with a variate of 79,510 weights on disk: memory, disk, resume after kill -9"
)
VARIATE = 4 * 79_510
"""Bytes of one client's variate."""


@dataclass(frozen=True)
class Population:
    """How many clients there are, and how many of a round's were never visited before."""

    clients: int
    cohort: int
    new: int
    more: int
    """Rounds after the one in which the last client was visited; the child dies after half of them."""
    checkpoint: float = 5.0
    """Seconds between checkpoints."""

    @property
    def rounds(self) -> int:
        return -(-self.clients // self.new) + self.more


FULL = Population(clients=100_000, cohort=500, new=400, more=12)
SMOKE = Population(clients=60, cohort=10, new=8, more=4, checkpoint=0.0)


@dataclass
class Diary:
    """What the children said."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    """After each round."""
    peak: int = 0
    """At any moment."""
    end: dict[str, Any] = field(default_factory=dict)

    def hear(self, message: dict[str, Any]) -> int:
        """Take down one line; gives the round it is about, or 0."""
        self.peak = max(self.peak, message.get("peak", 0))
        if "round" in message:
            self.seconds.append(message["seconds"])
            self.cpu.append(message["cpu"])
            self.resident.append(message["resident"])
        else:
            self.end |= message
        return int(message.get("round", 0))


def measure(
    scale: BenchScale = "full", cores: int | None = None, seed: int = 0, say: Callable[[str], None] = lambda _: None
) -> BenchResult:
    """Train, kill, resume, verify; the work is one process on one core, whatever `cores` says."""
    population = FULL if scale == "full" else SMOKE
    needed = int(1.1 * VARIATE * (population.clients + 20 * population.cohort))
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < needed:
        raise InputError(
            f"{NAME} needs {needed / GIGA:.0f} GB in {tempfile.gettempdir()}, where {free / GIGA:.0f} GB are free; "
            "make room or set TMPDIR to another disk."
        )
    with terminable(), tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
        first, second = Diary(), Diary()
        last = population.rounds - population.more // 2
        for message in _child(folder, population, seed, kill=last):
            number = first.hear(message)
            if number % 10 == 0 and number:
                resident = message["resident"] / 1e6
                say(f"{NAME}: round {number}/{population.rounds}, {message['seconds']:.2f} s, {resident:.0f} MB")
        say(f"{NAME}: killed after round {last}; resuming")
        for message in _child(folder, population, seed):
            second.hear(message)
        size = sum(path.stat().st_size for path in Path(folder).rglob("memory/*"))
    checks = _checks(population, first, second, size, scale)
    return BenchResult(NAME, ABOUT, scale, 1, 1, machine(), [_standing(first, second)], checks)


def _child(folder: str, population: Population, seed: int, kill: int = 0) -> Iterator[dict[str, Any]]:
    """The lines of a child, which is killed in the round after `kill`."""
    command = [sys.executable, "-m", "parley_benchmarks.memory_child", folder, json.dumps(vars(population)), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                message = json.loads(line)
                yield message
                if kill and message.get("round") == kill:
                    return
        finally:
            process.kill()
        if process.wait():
            raise ParleyError(f"the training process of {NAME} failed; its error is shown above.")


def _standing(first: Diary, second: Diary) -> Standing:
    seconds = first.seconds + second.seconds
    return Standing(
        name="parley",
        group="parley",
        versions={},
        setup_seconds=second.end["resume"],
        median=median(seconds),
        fastest=min(seconds),
        slowest=max(seconds),
        per_chunk=seconds,
        cpu=median(first.cpu + second.cpu),
        peak_gb=max(first.peak, second.peak) / GIGA,
        early_difference=None,
        final_difference=None,
    )


def _checks(population: Population, first: Diary, second: Diary, size: int, scale: BenchScale) -> list[Claim]:
    quarter = len(first.resident) // 4
    peak = max(first.peak, second.peak) / GIGA
    growth = max(first.resident[-quarter:]) / max(first.resident[quarter : 2 * quarter])
    count, resume, apart = (float(second.end[name]) for name in ("memories", "resume", "difference"))
    share = size / population.clients / VARIATE

    def at_most(claim: str, value: float, bound: float) -> Claim:
        return Claim(claim, value, bound, value <= bound if scale == "full" else None)

    return [
        Claim("every client has a memory", count, population.clients, count == population.clients),
        Claim("the server's variate is the mean of all clients'", apart, 1e-3, apart <= 1e-3),
        at_most("resident at the peak: at most 2 GB", peak, 2.0),
        at_most("resident in the last quarter of the rounds: at most 1.1 times the second quarter's", growth, 1.1),
        at_most("on disk: at most 1.1 variates per client", share, 1.1),
        at_most("resumed after kill -9 in at most 5 seconds", resume, 5.0),
    ]

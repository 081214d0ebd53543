"""TUNE-GAIN: what a second worker of `parley tune` brings, beside a second search apart from the first.

The same grid of step sizes is searched by whole commands, their start included: with one worker, with two, and by two
commands at the same time that have half of the grid and a store of their own each. Every process computes with one
thread. They take turns, and who begins alternates.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from parley import InputError, RunStore
from parley.core.processes import search_path
from parley_benchmarks.harness import terminable
from parley_benchmarks.result import GIGA, BenchResult, Claim, Standing, machine
from parley_benchmarks.workloads import BenchScale, available_cpus

NAME = "TUNE-GAIN"
ABOUT = "parley tune over 8 step sizes on the digits: one worker, two workers, and two commands with half of them each"
SHARE = 0.9
"""Of the gain that a second command shows, a second worker must show at least this."""
CORES = 2
RATES = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5)
STUDY = """
name = "tune-gain"
rounds = {rounds}
[data]
name = "digits"
clients = 20
test_fraction = 0.2
[data.partition]
name = "dirichlet"
alpha = 0.1
[model]
name = "mlp"
hidden = [64]
[algorithm]
name = "fedavg"
lr = 0.1
epochs = 2
[cohort]
size = 10
[evaluate]
every = 10
"""
Scores = dict[float, float]
"""What each step size was judged by."""


@dataclass(frozen=True)
class Spent:
    """What a search cost."""

    seconds: float
    cpu: float
    peak: float
    """GB of its largest process, or of one before it."""


def measure(
    scale: BenchScale = "full", cores: int | None = None, seed: int = 0, say: Callable[[str], None] = lambda _: None
) -> BenchResult:
    """Search in all three ways, several times in turn, and judge the gain pair by pair."""
    if cores not in (None, CORES) or len(available_cpus()) < CORES:
        raise InputError(f"{NAME} compares one worker with {CORES}, so it needs {CORES} cores, not {cores or 1}.")
    repeats, rounds, rates = (5, 1000, RATES) if scale == "full" else (1, 2, RATES[:2])
    ways: dict[str, Sequence[tuple[Sequence[float], int]]] = {
        "one worker": [(rates, 1)],
        "two workers": [(rates, 2)],
        "two commands": [(rates[::2], 1), (rates[1::2], 1)],
    }
    spent: dict[str, list[Spent]] = {name: [] for name in ways}
    found_scores: dict[str, Scores] = {}
    with terminable(), TemporaryDirectory(prefix="parley-bench-") as name:
        for repeat in range(repeats):
            for way in list(ways)[:: -1 if repeat % 2 else 1]:
                folder = Path(name) / f"{way} {repeat}".replace(" ", "-")
                cost, found_scores[way] = searched(folder, ways[way], rounds, seed)
                spent[way].append(cost)
                say(f"{NAME}: {repeat + 1}/{repeats}, {way}: {cost.seconds:.1f} s")
    checks = promises({name: [each.seconds for each in costs] for name, costs in spent.items()}, found_scores, scale)
    standings = [_standing(name, costs) for name, costs in spent.items()]
    return BenchResult(NAME, ABOUT, scale, CORES, 1, machine(), standings, checks)


def searched(
    folder: Path, commands: Sequence[tuple[Sequence[float], int]], rounds: int, seed: int
) -> tuple[Spent, Scores]:
    """Start these commands (step sizes, workers) together; what they cost until the last has ended, and all scores."""
    begin, before = time.perf_counter(), _of_ended()[0]
    started = [_started(folder / str(number), *process, rounds, seed) for number, process in enumerate(commands)]
    try:
        errors = [process.communicate()[1] for process in started]
    finally:
        for process in started:
            process.kill()  # its workers end with it
    took, (after, peak) = time.perf_counter() - begin, _of_ended()
    for process, error in zip(started, errors, strict=True):
        if process.returncode:
            raise InputError(f"{NAME}: parley tune ended with {process.returncode}: {error.strip()[-300:]}")
    kept = [scores(folder / str(number)) for number in range(len(commands))]
    return Spent(took, after - before, peak), {rate: score for process in kept for rate, score in process.items()}


def _started(folder: Path, rates: Sequence[float], workers: int, rounds: int, seed: int) -> subprocess.Popen[str]:
    folder.mkdir(parents=True)
    (folder / "study.toml").write_text(STUDY.format(rounds=rounds), encoding="utf-8")
    words = [
        "tune",
        "study.toml",
        "--param",
        f"algorithm.lr={list(rates)}",
        "--sampler",
        "grid",
        "--quiet",
        "--sampler-seed",
        str(seed),
        "--workers",
        str(workers),
        "--store",
        "runs.db",
    ]
    return subprocess.Popen(
        [sys.executable, "-c", "from parley.cli.main import main; main()", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": search_path()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _of_ended() -> tuple[float, float]:
    """Processor seconds of all processes that we started and that have ended, and the largest one's GB."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / GIGA


def scores(folder: Path) -> Scores:
    """Of every trial of a search, by its step size."""
    with RunStore(folder / "runs.db") as store:
        return {run.config["algorithm"]["lr"]: run.summary["clients/accuracy"] for run in store.runs()}


def promises(
    seconds: Mapping[str, Sequence[float]], scores_by_way: Mapping[str, Scores], scale: BenchScale
) -> list[Claim]:
    """The gain within a repeat, whose parts are neighbours in time; the median over the repeats is judged."""
    alone, workers, commands = (seconds[name] for name in ("one worker", "two workers", "two commands"))
    ours, theirs = ([a / b for a, b in zip(alone, two, strict=True)] for two in (workers, commands))
    shares = [a / b for a, b in zip(ours, theirs, strict=True)]
    share = median(shares)
    about = f"a second worker of parley tune brings at least {SHARE:g} of what a second command brings"
    sentence = f"{about} ({median(ours):.2f}x and {median(theirs):.2f}x)"
    apart = sum(
        len({other.get(rate) for other in scores_by_way.values()}) > 1 for rate in set().union(*scores_by_way.values())
    )
    return [
        Claim(sentence, share, SHARE, share >= SHARE if scale == "full" else None, min(shares), max(shares)),
        Claim("step sizes whose scores are not the same in all three", apart, 0, apart == 0),
    ]


def _standing(name: str, costs: Sequence[Spent]) -> Standing:
    seconds = [cost.seconds for cost in costs]
    return Standing(
        name=name,
        group=name,
        versions={"torch": torch.__version__},
        setup_seconds=0.0,
        median=median(seconds),
        fastest=min(seconds),
        slowest=max(seconds),
        per_chunk=seconds,
        cpu=median(cost.cpu for cost in costs),
        peak_gb=max(cost.peak for cost in costs),
        early_difference=None,
        final_difference=None,
    )

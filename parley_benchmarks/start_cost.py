"""START-UP: whole commands, from the shell to the end of their process, beside a Python that only imports torch.

Everything that trains must import torch, so it is the yardstick of a machine: its time is mostly the disk's and the
linker's. Commands take turns; wall time counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from parley import InputError
from parley.core.processes import search_path
from parley_benchmarks.harness import terminable
from parley_benchmarks.method_cost import at_most, result_of
from parley_benchmarks.result import BenchResult
from parley_benchmarks.roster import ROOT
from parley_benchmarks.workloads import BenchScale

NAME = "START-UP"
ABOUT = "parley run examples/digits.toml (50 rounds), report and compare, from the command line"
YARDSTICK = "import torch"
BOUNDS = {"run": 3.0, "report": 1.0, "compare": 1.0}
"""A command may take at most so many times as long as a Python that imports torch."""


def measure(
    scale: BenchScale = "full", cores: int | None = None, seed: int = 0, say: Callable[[str], None] = lambda _: None
) -> BenchResult:
    """Every command over the yardstick of its turn."""
    study = ROOT / "examples" / "digits.toml"
    if not study.is_file():
        raise InputError(f"{NAME} runs {study}, which is not there; run it from a checkout.")
    turns = 7 if scale == "full" else 1
    fewer = [] if scale == "full" else ["--rounds", "2"]
    parley = [sys.executable, "-c", "from parley.cli.main import main; main()"]
    commands: dict[str, Sequence[str]] = {
        YARDSTICK: [sys.executable, "-c", "import torch"],
        "run": [*parley, "run", str(study), *fewer],
        "report": [*parley, "report"],
        "compare": [*parley, "compare"],
    }
    spent: dict[str, list[float]] = {name: [] for name in commands}
    cpu: dict[str, list[float]] = {name: [] for name in commands}
    with terminable(), TemporaryDirectory(prefix="parley-bench-") as name:
        _seconds(commands["run"], Path(name))  # files are in the disk's cache, and a run is there to report
        for turn in range(turns):
            for command, words in commands.items():
                wall, processor = _seconds(words, Path(name))
                spent[command].append(wall)
                cpu[command].append(processor)
            say(f"{NAME}: {turn + 1}/{turns}, " + ", ".join(f"{who} {took[-1]:.2f} s" for who, took in spent.items()))
    checks = [
        at_most(f"parley {command} takes at most {bound:g} times a Python that imports torch", took, yardstick, bound)
        for command, bound in BOUNDS.items()
        for took, yardstick in [(spent[command], spent[YARDSTICK])]
    ]
    return result_of(NAME, ABOUT, scale, spent, checks, cpu)


def _seconds(words: Sequence[str], folder: Path) -> tuple[float, float]:
    """Wall and processor time of a command that must succeed."""
    began, before = time.perf_counter(), os.times()
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": search_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise InputError(f"{NAME}: {' '.join(words[-2:])} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    wall, after = time.perf_counter() - began, os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system

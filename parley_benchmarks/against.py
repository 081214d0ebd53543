"""This Parley against the one in another checkout: the same work in interleaved pairs, and how sure the ratio is.

Each side is a process tree of its own that runs its checkout's contestant with its checkout's package, so the two share
nothing but the files of work and the lines they are asked with.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from parley import InputError, Key
from parley.core.errors import nearest
from parley.core.text import printable
from parley_benchmarks.harness import Lap, race
from parley_benchmarks.result import machine, relative_distance
from parley_benchmarks.roster import Entrant, chosen, own_python, roster
from parley_benchmarks.work import initial_weights
from parley_benchmarks.workloads import WORKLOADS, BenchScale, Workload, workload

PAIRS = 9
"""Least number of pairs a ratio is taken over."""
LONGER = 5
"""Chunks of the small models are this many times as long as in a race, to be well above the clock's grain."""
RESAMPLES = 10_000


@dataclass(frozen=True)
class Paired:
    """One contestant of this checkout beside the same of the other one; seconds are per round, pair by pair."""

    workload: str
    contestant: str
    against: str
    ours: list[float]
    theirs: list[float]
    speedup: float
    """The median of theirs / ours: above 1, this checkout is faster."""
    low: float
    high: float
    """Its 95% bootstrap interval over the pairs."""
    cpu: float
    """The same median for processor time."""
    difference: float | None
    """Relative distance of the two sides' parameters after the parity rounds."""
    versions: tuple[str, str]
    """Of Parley, here and there."""
    machine: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def against(
    checkout: Path | str,
    names: Iterable[str] = (),
    scale: BenchScale = "full",
    *,
    cores: int | None = None,
    contestants: Iterable[str] = (),
    pairs: int = PAIRS,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> list[Paired]:
    """Race this checkout against another one on workloads (default: all races), at least nine pairs of chunks each."""
    if pairs < PAIRS:
        raise InputError(f"a ratio needs at least {PAIRS} pairs, not {pairs}.")
    root = _checked(Path(checkout))
    wanted = [name.upper() for name in names] or list(WORKLOADS)
    for name in wanted:
        if name not in WORKLOADS:
            raise InputError(f"'{name}' is no race between checkouts: {nearest(name, WORKLOADS)}")
    results = []
    for name in wanted:
        work = workload(name, scale, cores)
        longer = LONGER if scale == "full" and work.model != "cnn" and not work.lazy else 1
        work = replace(work, repeats=pairs, rounds=longer * work.rounds)
        entrants = [entrant for entrant in roster(work) if entrant.module == "parley_"]
        for entrant in chosen(entrants, contestants) if contestants else entrants:
            other = replace(entrant, name=f"{entrant.name} in {root}", root=root)
            laps = race(work, [entrant, other], {"": own_python()}, say, seed)
            results.append(_paired(work, laps, seed))
    return results


def ratio_interval(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float, float]:
    """The median of theirs / ours over pairs, and the 2.5% and 97.5% quantiles of it over resampled pairs."""
    ratios = np.asarray(theirs, dtype=np.float64) / np.asarray(ours, dtype=np.float64)
    rows = Key(0).fold("bootstrap").numpy().integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[rows], axis=1), (0.025, 0.975))
    return float(np.median(ratios)), float(low), float(high)


def paired_table(results: Sequence[Paired]) -> Table:
    """One row per contestant: milliseconds a round on both sides, how many times as fast, and the interval."""
    drawn = Table(title=Text(f"this checkout against {printable(results[0].against)}"))
    drawn.add_column("workload")
    drawn.add_column("contestant")
    for heading in ("ms a round", "against", "times as fast", "95% interval", "CPU", "pairs", "difference"):
        drawn.add_column(heading, justify="right")
    for result in results:
        times = [f"{1e3 * median(seconds):.2f}" for seconds in (result.ours, result.theirs)]
        ratio = [
            f"{result.speedup:.3f}",
            f"{result.low:.3f} .. {result.high:.3f}",
            f"{result.cpu:.3f}",
            str(len(result.ours)),
        ]
        difference = "-" if result.difference is None else f"{result.difference:.1e}"
        drawn.add_row(result.workload, result.contestant, *times, *ratio, difference)
    return drawn


def _paired(work: Workload, laps: Sequence[Lap], seed: int) -> Paired:
    us, them = laps
    speedup, low, high = ratio_interval(them.seconds, us.seconds)
    cpu = median(theirs / ours if ours else np.nan for theirs, ours in zip(them.cpu, us.cpu, strict=True))
    ours, theirs = ([seconds / work.rounds for seconds in lap.seconds] for lap in laps)
    difference = relative_distance(us.early, them.early, initial_weights(work, seed))
    versions = (us.versions["parley"], them.versions["parley"])
    return Paired(
        work.name,
        us.entry.name,
        str(them.entry.root),
        ours,
        theirs,
        speedup,
        low,
        high,
        cpu,
        difference,
        versions,
        machine(),
    )


def _checked(root: Path) -> Path:
    """The checkout's root, once it is certain that its own package is what runs there."""
    root = root.expanduser().resolve()
    if not (root / "parley_benchmarks" / "contestants" / "parley_.py").is_file():
        raise InputError(f"{root} is no checkout of Parley: it has no parley_benchmarks/contestants/parley_.py.")
    environment = {**os.environ, **Entrant("parley", "parley", "parley_", root=root).environment()}
    command = [str(own_python()), "-c", "import parley; print(parley.__file__)"]
    answer = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=tempfile.gettempdir(), check=False
    )
    if answer.returncode or not Path(answer.stdout.strip()).is_relative_to(root):
        raise InputError(f"the package in {root} cannot be imported instead of this one; is it a whole checkout?")
    return root

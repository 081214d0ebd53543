"""All results of one day as plain data: what `parley bench --all` writes and docs/bench.md is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median
from typing import Any

from parley import __version__
from parley_benchmarks.result import BenchResult, machine


def record(results: Sequence[BenchResult], command: str = "parley bench --all") -> dict[str, Any]:
    """Standings as multiples of Parley's time on the same chunks, claims with verdicts, and what they ran on.

    Of the machine only cores and memory are kept.
    """
    here = machine()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "parley": __version__,
        "machine": {key: here[key] for key in ("cores", "memory_gb", "python", "torch")},
        "workloads": [_workload(result) for result in results],
    }


def _workload(result: BenchResult) -> dict[str, Any]:
    ours = next((standing for standing in result.standings if standing.name == "parley"), None)
    standings = []
    for standing in result.standings:
        ratios = None
        if ours is not None and standing is not ours:
            ratios = sorted(t / o for t, o in zip(standing.per_chunk, ours.per_chunk, strict=True))
        standings.append(
            {
                "name": standing.name,
                "versions": {k: v for k, v in standing.versions.items() if k not in ("python", "torch")},
                "times": None if ratios is None else median(ratios),
                "low": None if ratios is None else ratios[0],
                "high": None if ratios is None else ratios[-1],
                "early_difference": standing.early_difference,
                "final_difference": standing.final_difference,
            }
        )
    return {
        "name": result.workload,
        "about": result.about,
        "scale": result.scale,
        "cores": result.cores,
        "standings": standings,
        "claims": [asdict(check) for check in result.checks],
    }

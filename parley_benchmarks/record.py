"""Results as plain data, workload by workload: what `parley bench --write` keeps and docs/bench.md is made from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from parley import InputError, __version__
from parley_benchmarks.result import BenchResult, machine


def record(
    results: Sequence[BenchResult], command: str = "parley bench --all", before: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Standings as multiples of Parley's time on the same chunks, claims with verdicts, and what they ran on.

    Of the machine only cores and memory are kept. Of an earlier record the workloads that did not run again stay, each
    with its date and machine.
    """
    here = machine()
    source = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "parley": __version__,
        "machine": {key: here[key] for key in ("cores", "memory_gb", "python", "torch")},
    }
    workloads = {workload["name"]: workload for workload in (before or {"workloads": []})["workloads"]}
    workloads |= {result.workload: source | _workload(result) for result in results}
    return {"workloads": list(workloads.values())}


def recorded(file: Path) -> dict[str, Any] | None:
    """What an earlier run has written to this file; None if it is not there."""
    if not file.is_file():
        return None
    try:
        read: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if all({"name", "date", "machine", "standings", "claims"} <= set(one) for one in read["workloads"]):
            return read
    except (ValueError, TypeError, KeyError):
        pass
    raise InputError(f"{file} holds no record of `parley bench`; write to another file.")


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

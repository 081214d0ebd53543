"""What a race showed: medians, ratios with their spread, agreement of parameters, and the verdict on each target."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import psutil
import torch
from torch import Tensor

from parley_benchmarks.harness import Lap
from parley_benchmarks.workloads import BenchScale, Target, Workload, available_cpus

GIGA = 1e9


@dataclass(frozen=True)
class Standing:
    """One contestant's figures; seconds are per round."""

    name: str
    group: str
    versions: dict[str, str]
    setup_seconds: float
    median: float
    fastest: float
    slowest: float
    per_chunk: list[float]
    cpu: float
    """Median processor seconds a round."""
    peak_gb: float
    early_difference: float | None
    """Relative distance of the parameters from the reference's after the parity rounds; None if not comparable."""
    final_difference: float | None
    """The same after the timed rounds; None if not comparable or the workload uses dropout."""


@dataclass(frozen=True)
class Claim:
    """One claim with the figure that decides it."""

    claim: str
    value: float | None
    """None if someone needed for it did not take part."""
    bound: float
    passed: bool | None
    """None if it was not judged: a contestant was missing, or the scale is smoke."""
    low: float | None = None
    high: float | None = None
    """Smallest and largest value over the chunks."""


@dataclass(frozen=True)
class BenchResult:
    """Everything one race left behind; `as_json` gives plain data."""

    workload: str
    about: str
    scale: BenchScale
    cores: int
    rounds_per_chunk: int
    machine: dict[str, Any]
    standings: list[Standing]
    checks: list[Claim]

    @property
    def passed(self) -> bool:
        """No claim that could be judged failed."""
        return all(check.passed is not False for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cpu": _cpu_name(),
        "cores": len(available_cpus()),
        "memory_gb": round(psutil.virtual_memory().total / GIGA, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def summarise(workload: Workload, scale: BenchScale, laps: Sequence[Lap], initial: Mapping[str, Tensor]) -> BenchResult:
    """Turn the laps of a race into figures and verdicts; `initial` are the weights everyone started from."""
    reference = next((lap for lap in laps if lap.entry.group == "plain"), laps[0])
    standings = [
        Standing(
            name=lap.entry.name,
            group=lap.entry.group,
            versions=lap.versions,
            setup_seconds=lap.setup,
            median=median(lap.seconds) / workload.rounds,
            fastest=min(lap.seconds) / workload.rounds,
            slowest=max(lap.seconds) / workload.rounds,
            per_chunk=[s / workload.rounds for s in lap.seconds],
            cpu=median(lap.cpu) / workload.rounds,
            peak_gb=lap.peak / GIGA,
            early_difference=relative_distance(lap.early, reference.early, initial),
            final_difference=relative_distance(lap.final, reference.final, initial),
        )
        for lap in laps
    ]
    checks = [judge_target(target, standings, workload, scale) for target in workload.targets]
    checks += _agreement(workload, standings)
    return BenchResult(
        workload.name, workload.about, scale, workload.cores, workload.rounds, machine(), standings, checks
    )


def relative_distance(
    weights: Mapping[str, Tensor], reference: Mapping[str, Tensor], initial: Mapping[str, Tensor]
) -> float | None:
    """|w - w'| / |w' - w0| over all tensors; None if either side has nothing to compare.

    Infinite if names or shapes differ or a value is not finite. If the reference did not move but for rounding (by less
    than 1e-4 of its length), the distance is taken relative to its length.
    """
    if not weights or not reference:
        return None
    if {k: w.shape for k, w in weights.items()} != {k: w.shape for k, w in reference.items()}:
        return float("inf")
    apart = _distance(weights, reference)
    travelled = _distance(reference, initial)
    length = _distance(reference, {name: torch.zeros_like(w) for name, w in reference.items()})
    scale = travelled if travelled > 1e-4 * length else length
    return apart / scale if scale else apart


def judge_target(target: Target, standings: Sequence[Standing], workload: Workload, scale: BenchScale) -> Claim:
    """The verdict on one target. A smoke run reports the figure but judges nothing."""
    who = next((s for s in standings if s.name == target.who), None)
    opponents = [s for s in standings if s.group == target.against]
    claim = _claim(target)
    if who is None or (target.quantity == "speedup" and not opponents):
        return Claim(claim, None, target.bound, None)
    if target.quantity == "speedup":
        opponent = min(opponents, key=lambda s: s.median)
        values = [theirs / ours for theirs, ours in zip(opponent.per_chunk, who.per_chunk, strict=True)]
        claim += f" (its best: {opponent.name})" if len(opponents) > 1 else ""
    else:
        values = [who.peak_gb]
    value = median(values)
    passed = target.met_by(value) if scale == "full" else None
    return Claim(claim, value, target.bound, passed, min(values), max(values))


def _claim(target: Target) -> str:
    if target.quantity == "speedup":
        return f"{target.who} is at least {target.bound:g}x as fast as {target.against}"
    return f"{target.who} needs at most {target.bound:g} GB at its peak"


def _agreement(workload: Workload, standings: Sequence[Standing]) -> list[Claim]:
    versions = {s.versions["torch"] for s in standings}
    checks = [Claim("all contestants run the same torch version", len(versions), 1, len(versions) == 1)]
    for when, bound, differences in (
        ("after the parity rounds", workload.tolerance, [s.early_difference for s in standings]),
        ("at the end", workload.final_tolerance, [s.final_difference for s in standings]),
    ):
        known = [d for d in differences if d is not None]
        if len(known) > 1:
            worst = max(known)
            checks.append(Claim(f"parameters agree {when}", worst, bound, worst <= bound))
    return checks


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    squared = sum(float((a[name].double() - b[name].double()).square().sum()) for name in b)
    return squared**0.5 if squared == squared else float("inf")


def _cpu_name() -> str:
    """The processor's name where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - a stream of a pseudo-file
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

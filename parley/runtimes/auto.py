"""Auto: picks a plan for the model at hand and says which and why."""

from __future__ import annotations

import os
from collections.abc import Callable

from parley.core.errors import InputError
from parley.core.tree import nbytes
from parley.runtimes.protocol import Job, Runtime, runtimes
from parley.runtimes.stacked import Stacked, obstacle

_WORTH = 2e12
"""Multiply-adds of a whole run below which worker processes do not pay for their start."""


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose(job: Job, workers: int, deadline: float | None, samples: int) -> tuple[str, str]:
    """The runtime's name and the reason; `samples`: how often a sample is seen by local steps in the whole run."""
    if deadline is not None:
        return "pool", "clients with a deadline need processes of their own"
    if job.task.module is None:
        return "inline", "the method trains no network"
    reason = obstacle(job)
    if reason is None and job.task.traits.dense is not None:
        return "stacked", "the model is a chain of dense layers"
    if job.task.device.type != "cpu":
        # One process feeds a GPU best, with as much as possible at a time.
        return ("stacked", f"on {job.task.device}") if reason is None else ("inline", f"{reason}; on {job.task.device}")
    why = reason or "the model is not a chain of dense layers"
    if workers > 1 and samples * _cost(job) > _WORTH:
        return "pool", f"{why}; {workers} worker processes"
    return "inline", f"{why}; too little work for worker processes"


def _cost(job: Job) -> float:
    """Multiply-adds per sample and step, roughly: weights are used once in dense layers, per pixel in others."""
    weights = nbytes(job.task.initial()) / 4
    shape = job.task.info.shape or (1,)
    pixels = 1 if job.task.traits.dense is not None else shape[-1] * (shape[-2] if len(shape) > 1 else 1) / 4
    return 3 * weights * max(1.0, pixels if weights < 1e6 else pixels / 8)


def open_runtime(
    name: str,
    job: Job,
    workers: int | None = None,
    deadline: float | None = None,
    samples: int = 0,
    address: str | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> tuple[Runtime, str]:
    """The runtime of that name for a job, and a sentence about the choice where it was `auto`'s.

    `address` names the Ray cluster; without it Ray is started on this machine, and ends with the run. `note` hears
    of it where the first stack of clients changes `auto`'s choice.
    """
    if name == "ray":
        from parley.runtimes.ray import RayRuntime

        cluster = RayRuntime(job, workers if address else workers or available_cores(), address)
        counts = ", ".join(f"{count} on {node}" for node, count in cluster.nodes.items())
        return cluster, f"runtime ray: workers {counts}"
    if address is not None:
        raise InputError(f"only the runtime 'ray' has an address, not '{name}'.")
    cores = workers or available_cores()
    if deadline is not None and name in ("inline", "stacked"):
        raise InputError(
            f"faults.deadline needs clients in processes of their own, not the runtime '{name}': "
            'use runtime = "pool".'
        )
    if name != "auto":
        return runtimes[name](job, cores), ""
    chosen, why = choose(job, cores, deadline, samples)
    if chosen == "stacked":
        return Stacked(job, cores, lambda reason: note(f"runtime inline: {reason}")), f"runtime stacked: {why}"
    return runtimes[chosen](job, cores), f"runtime {chosen}: {why}"

"""Inline: one client after the other in this process, one thread. The runtime to step through with a debugger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from parley.core.failure import Failure
from parley.core.processes import keep_freed_memory
from parley.runtimes.execute import as_one, attempt, evaluate, evaluate_together
from parley.runtimes.protocol import Answer, Call, EvaluationCall, Job, Score, Stamp, runtimes


class Inline:
    """One thread, as in every other runtime, so that all give the same bits."""

    name = "inline"
    holds_memories = False
    folder: Path | None = None
    threads = 1
    together = False
    """Whether clients are evaluated together, which gives the same numbers up to rounding."""

    def __init__(self, job: Job, workers: int = 1) -> None:
        self.job = job
        self._before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        keep_freed_memory()

    def run(self, calls: Sequence[Call], stamp: Stamp, deadline: float | None = None) -> list[Answer]:
        # A client in this process cannot be interrupted; `open_runtime` refuses deadlines for it.
        with torch.random.fork_rng(devices=[]):
            return as_one(self.job, calls) or [attempt(self.job, call) for call in calls]

    def evaluate(self, calls: Sequence[EvaluationCall]) -> list[Score | Failure]:
        if self.together:
            return evaluate_together(self.job, calls)
        return [evaluate(self.job, call) for call in calls]

    def busy(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        torch.set_num_threads(self._before)


runtimes("inline")(Inline)

"""Trials on processes: each trains what it is sent, tells how it stands, and is told when to stop."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import numpy as np
import torch

from parley.core.errors import InputError, ParleyError, StopRun
from parley.core.processes import end_with_parent
from parley.engine.listeners import Listener
from parley.learn.metrics import smaller_is_better
from parley.runtimes import nursery
from parley.store.records import RoundRecord
from parley.store.runs import RunStore
from parley.study.description import Study
from parley.study.tuning.attempt import Attempt, attempt, mean_of_last
from parley.study.tuning.candidates import Candidate

STEPS = 10
"""How often in a run a pruner is asked."""
SHARE = 0.1
"""Of the evaluations, those at the end whose mean is the score."""
PATIENCE = 3.0
"""Seconds in which a worker that is interrupted may save its run."""
Report = Callable[[int, float], bool]
"""(round, value so far) -> whether to stop."""


@dataclass(frozen=True)
class Job:
    """One trial."""

    candidate: Candidate
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a trial gave; the score is None where it diverged."""

    score: float | None
    run: str
    rounds: int
    pruned: bool = False


class _Reporter(Listener):
    """Tells how a run stands at a tenth, two tenths, ... of its rounds."""

    def __init__(self, metric: str, rounds: int, report: Report) -> None:
        self._metric, self._every, self._report = metric, max(1, rounds // STEPS), report
        self._rounds, self._next = rounds, self._every

    def round(self, record: RoundRecord) -> None:
        metric = record.metrics.get(self._metric)
        if metric is None or record.number < self._next or record.number >= self._rounds:
            return
        self._next = (record.number // self._every + 1) * self._every
        if math.isfinite(metric.value) and self._report(record.number, metric.value):
            raise StopRun("the search has seen enough of it.")


class Trainer:
    """Trains trials one after the other; clients that two of them share are loaded once."""

    def __init__(self, store: RunStore, *, alone: bool) -> None:
        self._store, self._alone = store, alone
        self._before: Study | None = None

    def perform(self, job: Job, report: Report | None) -> Outcome:
        candidate, tuning = job.candidate, job.candidate.tuning
        study = candidate.study(job.settings)
        if not self._alone and study.workers is None:
            study = replace(study, workers=1)
        if self._before is not None and _same_clients(study, self._before):
            vars(study)["_federation"] = self._before.federation()  # what loading it again would give
        self._before = study
        heard = [] if report is None else [_Reporter(candidate.metric, study.rounds, report)]
        found = attempt(study, self._store, heard)
        if found.curves and candidate.metric not in found.curves:
            raise InputError(
                f"trials are judged by '{candidate.metric}', which was not measured: they have "
                f"{', '.join(sorted(found.curves))}."
            )
        pruned = found.status == "stopped" and bool(found.curves)
        return Outcome(score_of(found, candidate.metric, tuning.score), found.run, found.rounds, pruned)


def _same_clients(one: Study, other: Study) -> bool:
    """Whether both describe the same data, read and dealt alike."""
    decisive = ("seed", "data", "data_fingerprint", "cohort", "preprocessing")
    return all(getattr(one, name) == getattr(other, name) for name in decisive)


def score_of(found: Attempt, metric: str, rule: str) -> float | None:
    """The mean over the last tenth of the evaluations, or the best one; None where it is no finite number."""
    if metric not in found.curves:
        return None
    values = found.curves[metric][1]
    if rule == "best" and np.isfinite(values).any():
        known = values[np.isfinite(values)]
        return float(known.min() if smaller_is_better(metric) is not False else known.max())
    score = mean_of_last(values, SHARE)
    return score if math.isfinite(score) else None


@contextmanager
def processes(count: int, store: Path) -> Iterator[list[Connection]]:
    """So many worker processes, by the connections to them; they end with the block, and with this process."""
    started = []
    for _ in range(count):
        here, there = Pipe()
        with there:
            started.append((nursery.start(__name__, [there.fileno()]), here))
        here.send(store)
    try:
        yield [here for _, here in started]
    finally:
        for _, here in started:
            here.close()
        for worker, _ in started:
            try:
                worker.wait(PATIENCE)
            except TimeoutExpired:  # in the middle of a run, which its checkpoint keeps
                worker.kill()
                worker.wait()


def ready(connections: list[Connection]) -> list[Connection]:
    """Those that have something to say; waits for the first."""
    return [one for one in wait(connections) if isinstance(one, Connection)]


def main(files: Sequence[int]) -> None:
    """A worker's life: jobs come in, ("report", round, value), ("done", outcome) or ("error", sentence) go out."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a run that is interrupted is saved
    torch.set_num_threads(1)
    end_with_parent()
    connection = Connection(files[0])
    with suppress(EOFError, OSError, KeyboardInterrupt), RunStore(connection.recv()) as store:
        trainer = Trainer(store, alone=False)

        def report(round: int, value: float) -> bool:
            connection.send(("report", round, value))
            return bool(connection.recv())

        while True:
            job, asks = connection.recv()
            try:
                connection.send(("done", trainer.perform(job, report if asks else None)))
            except ParleyError as error:
                connection.send(("error", str(error)))

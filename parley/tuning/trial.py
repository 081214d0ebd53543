"""A trial: trains what was proposed, tells how it stands, is told when to stop, and has a score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parley.core.errors import InputError, StopRun, nearest
from parley.engine.listeners import Listener
from parley.engine.roll_call import stored_coverages
from parley.store.records import RoundRecord
from parley.store.runs import RunStore
from parley.study.side_by_side import Report, Workspace
from parley.training.metrics import smaller_is_better
from parley.tuning.attempt import Attempt, attempt, mean_of_last
from parley.tuning.candidates import Candidate

STEPS = 10
"""How often in a run a pruner is asked."""
SHARE = 0.1
"""Of the evaluations, those at the end whose mean is the score."""


@dataclass(frozen=True)
class Outcome:
    """What a trial gave; the score is None where it diverged."""

    score: float | None
    run: str
    rounds: int
    pruned: bool = False
    coverage: str = ""
    """`3 of 5`: the clients behind a mean over clients that lacks some."""


@dataclass(frozen=True)
class Trial:
    """A candidate with the settings proposed."""

    candidate: Candidate
    settings: Mapping[str, Any]
    search: str
    """Its name, by which the store knows a run as a trial of it."""

    def perform(self, workspace: Workspace, report: Report) -> Outcome:
        candidate, tuning = self.candidate, self.candidate.tuning
        study = workspace.fitted(candidate.study(self.settings))
        listeners: list[Listener] = [_Measured(candidate.metric)]
        if tuning.pruner != "none":
            listeners.append(_Reporter(candidate.metric, study.rounds, report))
        outcome = attempt(study, workspace.store, listeners, workspace.execute(study), self.search)
        if outcome.curves:
            _check(candidate.metric, outcome.curves)
        pruned = outcome.status == "stopped" and bool(outcome.curves)
        score = score_of(outcome, candidate.metric, tuning.score)
        return Outcome(
            score, outcome.run, outcome.rounds, pruned, _coverage(workspace.store, outcome, candidate.metric)
        )


def _coverage(store: RunStore, outcome: Attempt, metric: str) -> str:
    measured = [name for name in outcome.curves if name in (metric, f"{metric}/clients")]
    failures = store.failures(outcome.run) if measured else []
    return stored_coverages(store, outcome.run, measured, failures).get(metric, "")


class _Measured(Listener):
    """Refuses a run from its beginning that does not measure what trials are judged by."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._seen: set[str] | None = None

    def round(self, record: RoundRecord) -> None:
        if record.number == 0:
            self._seen = set(record.metrics)
        elif record.number == 1 and self._seen is not None:  # one that goes on was seen before
            _check(self._metric, self._seen | set(record.metrics))


def _check(metric: str, measured: Iterable[str]) -> None:
    if metric not in (known := sorted(measured)):
        raise InputError(f"trials are judged by '{metric}', which was not measured: {nearest(metric, known)}")


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


def score_of(attempt: Attempt, metric: str, rule: str) -> float | None:
    """The mean over the last tenth of the evaluations, or the best one; None where it is no finite number."""
    if metric not in attempt.curves:
        return None
    values = attempt.curves[metric][1]
    if rule == "best" and np.isfinite(values).any():
        known = values[np.isfinite(values)]
        return float(known.min() if smaller_is_better(metric) is not False else known.max())
    score = mean_of_last(values, SHARE)
    return score if math.isfinite(score) else None

"""What is measured, on which model and which samples (see `settings.Evaluation`).

Samples are evaluated in fixed chunks whose sums are added in order, so every runtime gives the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from parley.algorithms.protocol import Method
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory, State
from parley.core.tree import nbytes
from parley.engine.settings import Evaluation
from parley.runtimes.protocol import Check, Job, Runtime, Score
from parley.store.records import Metric

_HELD = 2**26
"""Bytes of clients' memories that are evaluated at a time."""
_PERSONAL = 100
"""Clients whose own models are tried on the central test set, unless the settings say which."""


@dataclass
class Evaluator:
    job: Job
    settings: Evaluation
    key: Key

    def __post_init__(self) -> None:
        method = self.job.algorithm
        regression = self.job.task.info.kind == "regression"
        self.metric = ("loss" if regression else "accuracy") if self.settings.metric == "auto" else self.settings.metric
        if regression and self.metric == "accuracy":
            raise InputError("evaluate.metric is 'accuracy', but the task is regression: use 'loss'.")
        self.personal = isinstance(method, Method) and method.personal
        self.clients = self._clients(self.settings.clients)
        self.central = self.settings.central and self.job.federation.test is not None
        if self.central and self.personal and not self.clients:
            self.owners = self._clients(min(_PERSONAL, len(self.job.federation)))
        else:
            self.owners = self.clients

    def _clients(self, which: int | str) -> list[str]:
        federation = self.job.federation
        if which == "none":
            return []
        if which == "all" or (isinstance(which, int) and which >= len(federation)):
            return list(federation.ids)
        chosen = self.key.fold("evaluated clients").numpy().choice(len(federation), int(which), replace=False)
        return [federation.ids[i] for i in sorted(chosen.tolist())]

    def due(self, number: int, last: bool) -> bool:
        return (self.central or bool(self.clients)) and (last or number % self.settings.every == 0)

    def measure(self, runtime: Runtime, state: State, memory: Callable[[str], Memory]) -> dict[str, Metric]:
        """All metrics of the settings, as they stand now."""
        metrics: dict[str, Metric] = {}
        if self.central:
            test = self.job.federation.test
            assert test is not None
            if self.personal:
                tried = ((i, self._chunks(state, memory(i), None, len(test))) for i in self.owners)
                metrics |= _mean_over_clients("central", self._score(runtime, tried))
            else:
                total = self._score(runtime, [("", self._chunks(state, None, None, len(test)))])[""]
                metrics |= {f"central/{name}": Metric(value) for name, value in _values(total).items()}
        if self.clients and (scores := self._score(runtime, self._on_their_own(state, memory))):
            metrics |= _mean_over_clients("clients", scores)
        return metrics

    def headline(self, metrics: dict[str, Metric]) -> float | None:
        """The number that `best` and `target` refer to."""
        for where in ("central", "clients"):
            metric = metrics.get(f"{where}/{self.metric}")
            if metric is not None and not math.isnan(metric.value):
                return metric.value
        return None

    def better(self, value: float, than: float | None) -> bool:
        if than is None:
            return True
        return value > than if self.metric == "accuracy" else value < than

    def reached(self, value: float | None) -> bool:
        target = self.settings.target
        if value is None or target is None:
            return False
        return value >= target if self.metric == "accuracy" else value <= target

    def _chunks(self, state: State, memory: Memory | None, client: str | None, samples: int) -> list[Check]:
        starts = range(0, samples, self.settings.batch)
        return [Check(state, memory, client, start, min(start + self.settings.batch, samples)) for start in starts]

    def _on_their_own(self, state: State, memory: Callable[[str], Memory]) -> Iterator[tuple[str, list[Check]]]:
        """The checks of each client on its held-out samples."""
        for client in self.clients:
            own = self.job.federation.client_test(client)
            if own is not None:
                yield client, self._chunks(state, memory(client), client, len(own))

    def _score(self, runtime: Runtime, checks: Iterable[tuple[str, list[Check]]]) -> dict[str, Score]:
        """The sum of each client's checks; only some clients' memories are in RAM at a time."""
        totals: dict[str, Score] = {}
        waiting: dict[str, list[Check]] = {}
        held = 0
        for client, own in checks:
            waiting[client] = own
            held += sum(nbytes(check.memory.tensors) for check in own[:1] if check.memory is not None)
            if held > _HELD:
                totals |= _evaluated(runtime, waiting)
                waiting, held = {}, 0
        return totals | _evaluated(runtime, waiting)


def _evaluated(runtime: Runtime, checks: dict[str, list[Check]]) -> dict[str, Score]:
    scores = iter(runtime.evaluate([check for own in checks.values() for check in own]))
    return {client: _total([next(scores) for _ in own]) for client, own in checks.items()}


def _total(scores: Sequence[Score]) -> Score:
    return Score(
        math.fsum(s.loss for s in scores), math.fsum(s.correct for s in scores),
        sum(s.samples for s in scores), sum(s.positions for s in scores),
    )  # fmt: skip


def _values(score: Score) -> dict[str, float]:
    values = {"loss": score.loss / max(score.samples, 1)}
    if not math.isnan(score.correct):
        values["accuracy"] = score.correct / max(score.positions, 1)
    return values


def _mean_over_clients(where: str, scores: dict[str, Score]) -> dict[str, Metric]:
    values = {client: _values(score) for client, score in scores.items()}
    names: Iterable[str] = next(iter(values.values())) if values else ()
    metrics = {}
    for name in names:
        own = {client: value[name] for client, value in values.items()}
        metrics[f"{where}/{name}"] = Metric(math.fsum(own.values()) / len(own), own)
    return metrics

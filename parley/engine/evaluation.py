"""What is measured, on which model and which samples (see `settings.Evaluation`).

Evaluation is an exchange of the engine's own: clients receive the model (`Algorithm.model`) and answer with numbers.
The central test set is the server's; there, clients' own models are tried in a simulation only. Samples are evaluated
in fixed chunks whose sums are added in order, so every runtime gives the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from parley.core.errors import InputError, ParleyError
from parley.core.failure import Failure
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import nbytes
from parley.core.wire import wire_size
from parley.engine.settings import Evaluation
from parley.runtimes.protocol import EvaluationCall, Job, Runtime, Score
from parley.store.records import Metric

_HELD = 2**26
"""Bytes of clients' memories that are evaluated at a time."""
_SOME = 100
"""Clients that are evaluated, or whose own models are tried on the central test set, unless the settings say which."""
Scored = tuple[str, list[EvaluationCall]]


@dataclass
class Evaluator:
    job: Job
    settings: Evaluation
    key: Key
    failures: list[Failure] = field(default_factory=list)
    """Clients that could not be evaluated the last time."""

    def __post_init__(self) -> None:
        federation, which = self.job.federation, self.settings.clients
        regression = self.job.task.info.kind == "regression"
        self.metric = ("loss" if regression else "accuracy") if self.settings.metric == "auto" else self.settings.metric
        if regression and self.metric == "accuracy":
            raise InputError("evaluate.metric is 'accuracy', but the task is regression: use 'loss'.")
        self.personal = self.job.algorithm.personal
        self.central = self.settings.central and federation.test is not None
        if which == "auto":
            which = _SOME if federation.held_out is not None and (self.personal or not self.central) else "none"
        self.clients = self._clients(which)
        self.owners = self.clients or (self._clients(_SOME) if self.central and self.personal else [])
        self._outputs: tuple[int, Tensor] | None = None
        """Of an incremental method on the central test set: a round and the outputs then."""

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

    def measure(
        self, runtime: Runtime, number: int, state: State, memory: Callable[[str], Memory],
        version: Callable[[str], int | None],
    ) -> dict[str, Metric]:  # fmt: skip
        """All metrics of the settings, as they stand after round `number`."""
        self.failures = []
        algorithm, task = self.job.algorithm, self.job.task
        metrics: dict[str, Metric] = {}
        if self.central and not self.personal:
            metrics |= self._central(runtime, number, state)
        model = algorithm.model(task, state) if self.clients or self.personal else Message()
        # A node's memory stays where it is, so its model cannot be tried on the server's samples.
        if self.central and self.personal and not runtime.holds_memories:
            tried = ((i, self._chunks(model, memory(i))) for i in self.owners)
            metrics |= _mean_over_clients("central", self._score(runtime, tried))
        if self.clients and (scores := self._score(runtime, self._on_their_own(model, memory, version))):
            metrics |= _mean_over_clients("clients", scores)
            size = wire_size(model)
            metrics["evaluate/down/bytes"] = Metric(size * len(self.clients), dict.fromkeys(self.clients, size))
            sizes: dict[str, float] = {
                i: wire_size(Message(scalars=dict(_values(score)))) for i, score in scores.items()
            }
            metrics["evaluate/up/bytes"] = Metric(sum(sizes.values()), sizes)
        return metrics

    def headline(self, metrics: dict[str, Metric]) -> float | None:
        """The number that `best` and `target` refer to."""
        for where in ("clients", "central") if self.personal else ("central", "clients"):
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

    def _central(self, runtime: Runtime, number: int, state: State) -> dict[str, Metric]:
        """The server's model on the central test set."""
        algorithm, task = self.job.algorithm, self.job.task
        since, before = self._outputs if self._outputs is not None and algorithm.incremental else (None, None)
        calls = self._chunks(algorithm.model(task, state, since), None, before)
        parts = self._evaluated(runtime, {"": calls}, must=True)[""]
        total = _total(parts)
        if parts[0].outputs is not None:
            outputs = torch.cat([part.outputs for part in parts if part.outputs is not None])
            self._outputs = (number, outputs) if algorithm.incremental else None
            test = self.job.federation.test
            assert test is not None
            total = Score(
                total.loss, total.correct, total.samples, total.positions,
                {name: scorer(test.y, outputs) for name, scorer in self.job.scorers.items()},
            )  # fmt: skip
        return {f"central/{name}": Metric(value) for name, value in _values(total).items()}

    def _chunks(self, model: Message, memory: Memory | None, before: Tensor | None = None) -> list[EvaluationCall]:
        """The central test set in parts that may be evaluated side by side."""
        test, batch = self.job.federation.test, self.settings.batch
        assert test is not None
        keep = bool(self.job.scorers) or self.job.algorithm.incremental
        parts = [slice(start, min(start + batch, len(test))) for start in range(0, len(test), batch)]
        earlier = [None if before is None else before[part] for part in parts]
        return [
            EvaluationCall(model, memory, None, part.start, part.stop, batch, own, keep)
            for part, own in zip(parts, earlier, strict=True)
        ]

    def _on_their_own(
        self, model: Message, memory: Callable[[str], Memory], version: Callable[[str], int | None]
    ) -> Iterator[Scored]:
        """The calls of each client on its held-out samples."""
        for client in self.clients:
            if self.job.federation.test_size(client):
                call = EvaluationCall(
                    model, memory(client), client, batch=self.settings.batch, version=version(client)
                )  # fmt: skip
                yield client, [call]

    def _score(self, runtime: Runtime, calls: Iterable[Scored]) -> dict[str, Score]:
        """Each client's score; only some clients' memories are in RAM at a time."""
        totals: dict[str, Score] = {}
        waiting: dict[str, list[EvaluationCall]] = {}
        held = 0
        for client, own in calls:
            waiting[client] = own
            held += sum(nbytes(call.memory.tensors) for call in own[:1] if call.memory is not None)
            if held > _HELD:
                totals |= {i: _total(parts) for i, parts in self._evaluated(runtime, waiting).items()}
                waiting, held = {}, 0
        return totals | {i: _total(parts) for i, parts in self._evaluated(runtime, waiting).items()}

    def _evaluated(
        self, runtime: Runtime, calls: dict[str, list[EvaluationCall]], must: bool = False
    ) -> dict[str, list[Score]]:
        """The scores of each owner's calls; who cannot be evaluated is left out and noted."""
        scores = iter(runtime.evaluate([call for own in calls.values() for call in own]))
        found: dict[str, list[Score]] = {}
        for client, own in calls.items():
            parts = [next(scores) for _ in own]
            failed = next((part for part in parts if isinstance(part, Failure)), None)
            if failed is None:
                found[client] = [part for part in parts if isinstance(part, Score)]
            elif must:
                raise ParleyError(f"the evaluation of the server's model failed: it {failed.reason}\n{failed.trace}")
            else:
                self.failures.append(Failure(client, f"could not be evaluated: it {failed.reason}", failed.trace))
        return found


def _total(scores: Sequence[Score]) -> Score:
    return Score(
        math.fsum(s.loss for s in scores), math.fsum(s.correct for s in scores),
        sum(s.samples for s in scores), sum(s.positions for s in scores), scores[0].values if len(scores) == 1 else {},
    )  # fmt: skip


def _values(score: Score) -> dict[str, float]:
    values = {"loss": score.loss / max(score.samples, 1)}
    if not math.isnan(score.correct):
        values["accuracy"] = score.correct / max(score.positions, 1)
    return values | dict(score.values)


def _mean_over_clients(where: str, scores: dict[str, Score]) -> dict[str, Metric]:
    values = {client: _values(score) for client, score in scores.items()}
    names: Iterable[str] = next(iter(values.values())) if values else ()
    metrics = {}
    for name in names:
        own = {client: value[name] for client, value in values.items()}
        metrics[f"{where}/{name}"] = Metric(math.fsum(own.values()) / len(own), own)
    return metrics

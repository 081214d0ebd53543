"""What is measured, on which model and which samples (see `settings.Evaluation`).

Evaluation is an exchange of the engine's own: clients receive the model (`Learned.message`) and answer with numbers.
The central test set is the server's; there, clients' own models are tried in a simulation only. Samples are evaluated
in fixed chunks whose sums are added in order, so every runtime gives the same numbers; `stacked`, which takes clients
with one model together, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from parley.core.errors import InputError, ParleyError, nearest
from parley.core.failure import Failure
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import nbytes
from parley.core.wire import wire_size
from parley.engine.roll_call import UNEVALUATED
from parley.engine.settings import Evaluation
from parley.engine.stopping import Headline
from parley.runtimes.execute import failed
from parley.runtimes.protocol import EvaluationCall, Job, Runtime, Score
from parley.store.records import Metric
from parley.training.metrics import ALWAYS, Scorer, check_measured, check_target
from parley.training.pooled import MOST_CLASSES, POOLED, Counts

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
    counts: Counts | None = None
    """Of the last evaluation, where the settings ask for them: clients' together, else the central test set's."""

    def __post_init__(self) -> None:
        federation, which = self.job.federation, self.settings.clients
        self.learned = self.job.algorithm.learned(self.job.server)
        self.personal = self.learned.personal
        self.central = self.settings.central and federation.test is not None
        if which == "auto":
            which = _SOME if federation.held_out is not None and (self.personal or not self.central) else "none"
        self.clients = self._clients(which)
        self.owners = self.clients or (self._clients(_SOME) if self.central and self.personal else [])
        self._check_pooled()
        self.headline = self._headline()
        self._outputs: tuple[int, Tensor] | None = None
        """Of an incremental method on the central test set: a round and the outputs then."""

    def _headline(self) -> Headline | None:
        """What the settings say `best`, `target` and `patience` refer to; None if nothing is measured."""
        settings, scorers = self.settings, self.job.scorers
        regression = self.job.task.info.kind == "regression"
        if settings.headline is not None:
            name = settings.headline.removeprefix("-")
            where, _, last = name.partition("/")
            if name in (*ALWAYS, *scorers):
                raise InputError(
                    f"evaluate.headline is '{name}'; say of which samples: clients/{name} or central/{name}."
                )
            if (where == "central" and not self.central) or (where == "clients" and not self.clients):
                raise InputError(f"evaluate.headline is '{name}', but nothing is evaluated there ({where}).")
            if where == "pooled" and (not settings.pooled or not self.clients or last not in POOLED):
                raise InputError(
                    f"evaluate.headline is '{name}'; with pooled = true and held-out samples at clients there are "
                    f"{', '.join(f'pooled/{each}' for each in POOLED)}."
                )
            if where in ("central", "clients"):
                _check(last, scorers, regression, "evaluate.headline")
                check_target(last, settings.target, "evaluate.target")
            return Headline.judged(name, settings.headline, scorers)
        last = ("loss" if regression else "accuracy") if settings.metric == "auto" else settings.metric
        _check(last, scorers, regression, "evaluate.metric")
        check_target(last, settings.target, "evaluate.target")
        if not self.central and not self.clients:
            return None
        where = "clients" if self.clients and (self.personal or not self.central) else "central"
        return Headline.judged(f"{where}/{last}", None, scorers)

    def _check_pooled(self) -> None:
        info = self.job.task.info
        if self.settings.pooled and (info.kind != "classification" or not 2 <= info.outputs <= MOST_CLASSES):
            raise InputError(
                f"evaluate.pooled supports classification with 2 to {MOST_CLASSES} classes; this data set is not; "
                "leave it out."
            )

    def _clients(self, which: int | str) -> list[str]:
        federation = self.job.federation
        if which == "none":
            return []
        if which == "all" or (isinstance(which, int) and which >= len(federation)):
            return list(federation.ids)
        chosen = self.key.fold("evaluated clients").numpy().choice(len(federation), int(which), replace=False)
        return [federation.ids[i] for i in sorted(chosen.tolist())]

    def check(self, metrics: Mapping[str, Metric]) -> None:
        """Refuse a headline, not one of evaluation's, that the first round does not have."""
        name = "" if self.headline is None else self.headline.name
        if name and not name.startswith(("central/", "clients/")) and name not in metrics:
            raise InputError(
                f"evaluate.headline is '{name}', but no such metric was recorded: {nearest(name, metrics)}"
            )

    def due(self, number: int, last: bool) -> bool:
        return (self.central or bool(self.clients)) and (last or number % self.settings.every == 0)

    def measure(
        self,
        runtime: Runtime,
        number: int,
        state: State,
        memory: Callable[[str], Memory],
        version: Callable[[str], int | None],
        durable: int = 0,
    ) -> dict[str, Metric]:
        """All metrics of the settings, as they stand after round `number`."""
        self.failures, self.counts = [], None
        metrics: dict[str, Metric] = {}
        if self.central and not self.personal:
            metrics |= self._central(runtime, number, state)
        model = self.learned.message(state) if self.clients or self.personal else Message()
        # A node's memory stays where it is, so its model cannot be tried on the server's samples.
        if self.central and self.personal and not runtime.holds_memories:
            tried = ((i, self._chunks(model, memory(i), whole=self.job.judges_all)) for i in self.owners)
            metrics |= _mean_over_clients("central", self._score(runtime, tried))
        calls = self._on_their_own(model, memory, version, number, durable)
        if self.clients and (scores := self._counted(self._score(runtime, calls))):
            scores = {client: score.rounded(self.settings.digits) for client, score in scores.items()}
            if self.settings.pooled:
                self.counts = Counts.total(score.counts for score in scores.values() if score.counts is not None)
                metrics |= _pooled(_total(list(scores.values())), self.counts)
            metrics |= _mean_over_clients("clients", scores)
            size = wire_size(model)
            metrics["evaluate/down/bytes"] = Metric(size * len(self.clients), dict.fromkeys(self.clients, size))
            first = next(iter(scores.values()))
            counted = 0 if first.counts is None else first.counts.confusion.size + first.counts.scores.size + 1
            numbers = len(_values(first)) + counted
            answer = wire_size(Message.of(metrics=torch.empty(numbers, dtype=torch.float64)))
            metrics["evaluate/up/bytes"] = Metric(answer * len(scores), dict.fromkeys(scores, answer))
        return metrics

    def _central(self, runtime: Runtime, number: int, state: State) -> dict[str, Metric]:
        """The server's model on the central test set."""
        since, before = self._outputs or (None, None)
        calls = self._chunks(self.learned.message(state, since), None, before)
        parts = self._evaluated(runtime, {"": calls}, must=True)[""]
        total = _total(parts)
        if parts[0].outputs is not None:
            outputs = torch.cat([part.outputs for part in parts if part.outputs is not None])
            self._outputs = (number, outputs) if self.learned.incremental else None
            test = self.job.federation.test
            assert test is not None
            self.counts = Counts.of(outputs, test.y) if self.settings.pooled else None
            total = Score(
                total.loss,
                total.correct,
                total.samples,
                total.positions,
                {name: scorer(outputs, test.y) for name, scorer in self.job.scorers.items()},
            )
        return {f"central/{name}": Metric(value) for name, value in _values(total).items()}

    def _chunks(
        self, model: Message, memory: Memory | None, before: Tensor | None = None, whole: bool = False
    ) -> list[EvaluationCall]:
        """The central test set in parts that may be evaluated side by side, unless it is wanted as a whole."""
        test, batch = self.job.federation.test, self.settings.batch
        assert test is not None
        if whole:
            return [EvaluationCall(model, memory, None, batch=batch)]
        keep = memory is None and (self.job.judges_all or self.learned.incremental)
        parts = [slice(start, min(start + batch, len(test))) for start in range(0, len(test), batch)]
        earlier = [None if before is None else before[part] for part in parts]
        return [
            EvaluationCall(model, memory, None, part.start, part.stop, batch, outputs, keep)
            for part, outputs in zip(parts, earlier, strict=True)
        ]

    def _on_their_own(
        self,
        model: Message,
        memory: Callable[[str], Memory],
        version: Callable[[str], int | None],
        number: int,
        durable: int,
    ) -> Iterator[Scored]:
        """The calls of each client on its held-out samples."""
        for client in self.clients:
            try:
                samples = self.job.federation.test_size(client)
            except Exception as error:  # its data cannot even be looked at
                self._fail(failed(client, error))
                continue
            if samples:
                call = EvaluationCall(
                    model,
                    memory(client),
                    client,
                    batch=self.settings.batch,
                    version=version(client),
                    round=number,
                    durable=durable,
                )
                yield client, [call]

    def _counted(self, scores: dict[str, Score]) -> dict[str, Score]:
        """Those that come with the counts that were asked for; others are left out and noted."""
        if not self.settings.pooled:
            return scores
        classes = self.job.task.info.outputs
        for client, score in list(scores.items()):
            counts = score.counts
            if counts is None or counts.classes != classes or counts.samples != score.positions:
                self._fail(Failure(client, "sent no counts that fit its samples."))
                del scores[client]
        return scores

    def _fail(self, failure: Failure) -> None:
        self.failures.append(Failure(failure.client, f"{UNEVALUATED}{failure.reason}", failure.trace))

    def _score(self, runtime: Runtime, calls: Iterable[Scored]) -> dict[str, Score]:
        """Each client's score; only some clients' memories are in RAM at a time."""
        totals: dict[str, Score] = {}
        waiting: dict[str, list[EvaluationCall]] = {}
        held = 0
        for client, client_calls in calls:
            waiting[client] = client_calls
            held += sum(nbytes(call.memory.tensors) for call in client_calls[:1] if call.memory is not None)
            if held > _HELD:
                totals |= {i: _total(parts) for i, parts in self._evaluated(runtime, waiting).items()}
                waiting, held = {}, 0
        return totals | {i: _total(parts) for i, parts in self._evaluated(runtime, waiting).items()}

    def _evaluated(
        self, runtime: Runtime, calls: dict[str, list[EvaluationCall]], must: bool = False
    ) -> dict[str, list[Score]]:
        """The scores of each owner's calls; who cannot be evaluated is left out and noted."""
        scores = iter(runtime.evaluate([call for parts_of in calls.values() for call in parts_of]))
        scores_by_client: dict[str, list[Score]] = {}
        for client, parts_of in calls.items():
            parts = [next(scores) for _ in parts_of]
            wrong = next((part for part in parts if isinstance(part, Failure)), None)
            if wrong is None:
                scores_by_client[client] = [part for part in parts if isinstance(part, Score)]
            elif must:
                raise ParleyError(f"the evaluation of the server's model failed: it {wrong.reason}\n{wrong.trace}")
            else:
                self._fail(Failure(client, wrong.reason, wrong.trace))
        return scores_by_client


def _pooled(total: Score, counts: Counts) -> dict[str, Metric]:
    """Of all clients' samples together; `pooled/auc/off-by` is how far off the bins may have brought the AUC."""
    values = {name: value for name, value in _values(total).items() if name in POOLED}
    values["calibration-error"] = counts.calibration_error
    if counts.classes == 2:
        values["auc"], values["auc/off-by"] = counts.auc
    return {f"pooled/{name}": Metric(value) for name, value in values.items()}


def _total(scores: Sequence[Score]) -> Score:
    alone = scores[0] if len(scores) == 1 else None
    return Score(
        math.fsum(s.loss for s in scores),
        math.fsum(s.correct for s in scores),
        sum(s.samples for s in scores),
        sum(s.positions for s in scores),
        alone.values if alone else {},
        counts=alone.counts if alone else None,
    )


def _values(score: Score) -> dict[str, float]:
    values = {"loss": score.loss / max(score.samples, 1)}
    if not math.isnan(score.correct):
        values["accuracy"] = score.correct / max(score.positions, 1)
    return values | dict(score.values)


def _mean_over_clients(where: str, scores: dict[str, Score]) -> dict[str, Metric]:
    """The mean over the clients for which a metric is defined; how many they are is recorded where some are not.

    Where the outputs of a client are no numbers, as its loss shows, the metric is not undefined but lost, and the mean.
    """
    values = {client: _values(score) for client, score in scores.items()}
    names: Iterable[str] = next(iter(values.values())) if values else ()
    metrics = {}
    for name in names:
        by_client = {client: value[name] for client, value in values.items()}
        if name in ("loss", "accuracy"):
            metrics[f"{where}/{name}"] = Metric(math.fsum(by_client.values()) / len(by_client), by_client)
            continue
        defined = [v for client, v in by_client.items() if not math.isnan(v) or math.isnan(values[client]["loss"])]
        metrics[f"{where}/{name}"] = Metric(math.fsum(defined) / len(defined) if defined else math.nan, by_client)
        if len(defined) < len(by_client):
            metrics[f"{where}/{name}/clients"] = Metric(len(defined))
    return metrics


def _check(name: str, scorers: Mapping[str, Scorer], regression: bool, setting: str) -> None:
    check_measured(name, scorers, setting)
    if regression and name == "accuracy":
        raise InputError(f"{setting} is 'accuracy', but the task is regression: use 'loss'.")

"""The round loop: sample, play, evaluate, record, checkpoint; the only one there is."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parley.core.errors import QuorumError
from parley.core.key import Key
from parley.core.message import Memory, State
from parley.engine.evaluation import Evaluator
from parley.engine.exchange import Round
from parley.engine.keeper import Keeper
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.sampling import Sampler
from parley.engine.settings import Faults
from parley.runtimes.protocol import Job, Runtime, Stamp
from parley.store.memories import Memories
from parley.store.records import Metric, RoundRecord


@dataclass
class Loop:
    """Everything one run needs while it goes on."""

    job: Job
    run: Run
    runtime: Runtime
    sampler: Sampler
    evaluator: Evaluator
    faults: Faults
    key: Key
    rounds: int
    memories: Memories
    keeper: Keeper | None = None
    listeners: Sequence[Listener] = ()
    incarnation: int = field(default_factory=lambda: secrets.randbits(31))
    """Tells this start of the run from others, for recipients that remember what they were asked."""
    _settled: bool = True
    """The state, the memories and the records belong to the same round; only then may they be saved."""

    def go(self) -> None:
        """Rounds until the last, the target, a lack of quorum or an interrupt; the run's status says which."""
        run = self.run
        try:
            if not run.records and self.evaluator.due(0, last=False):
                metrics = self._evaluate(0, run.state, {})
                self._finish(RoundRecord(0, metrics, tuple(self.evaluator.failures)), run.state, {})
            status = "finished"
            done = run.records[-1] if run.records else None
            while (done is None or done.number < self.rounds) and not self._reached(done):
                done = self.step((done.number if done is not None else 0) + 1)
        except QuorumError:
            status = "stopped"
            raise
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        except BaseException:
            status = "failed"
            raise
        finally:
            run.status = status
            if self.keeper is not None and self._settled:
                self.keeper.save(run, self.memories, status)
            elif self.keeper is not None:  # interrupted between two of them; the last checkpoint stands
                self.keeper.store.commit(self.keeper.run, [], status=status)
            for listener in self.listeners:
                listener.end(run)

    def step(self, number: int) -> RoundRecord:
        """One round and its record."""
        begin = time.perf_counter()
        cohort = replace(self.sampler.draw(number), since=_Since(self.memories))
        stamp = Stamp(
            self.run.id or "", self.incarnation, number, 0, self.keeper.durable if self.keeper else number - 1
        )
        course = Round(
            self.job, self.runtime, self.memories, self.faults, self.key.fold("round", number), cohort,
            self.sampler.absences(cohort, number), stamp, self.listeners,
        )  # fmt: skip
        state = course.play(self.run.state)
        seconds = time.perf_counter() - begin
        metrics = _traffic(course) | {"seconds": Metric(seconds)}
        metrics |= {f"server/{name}": Metric(value) for name, value in course.metrics.items()}
        if self.evaluator.due(number, last=number == self.rounds):
            metrics |= self._evaluate(number, state, course.remembered)
        if course.observed:
            for listener in self.listeners:
                metrics |= listener.observe(number, course.observed) or {}
        record = RoundRecord(number, metrics, (*course.failures.values(), *self.evaluator.failures))
        self._finish(record, state, course.remembered)
        return record

    def _evaluate(self, number: int, state: State, remembered: Mapping[str, Memory]) -> dict[str, Metric]:
        begin = time.perf_counter()
        metrics = self.evaluator.measure(
            self.runtime, number, state, lambda client: remembered.get(client) or self.memories[client],
            lambda client: number if client in remembered else self.memories.version(client),
        )  # fmt: skip
        return metrics | {"evaluate/seconds": Metric(time.perf_counter() - begin)}

    def _finish(self, record: RoundRecord, state: State, remembered: Mapping[str, Memory]) -> None:
        """Make a round part of the run. An interrupt in the middle leaves the last checkpoint as it is."""
        run = self.run
        self._settled = False
        value = self.evaluator.headline(record.metrics)
        if value is not None and self.evaluator.better(value, run.best_value):
            run.best_state, run.best_round, run.best_value = state, record.number, value
        run.state = state
        self.memories.accept(record.number, remembered)
        run.records.append(record)
        if self.keeper is not None:
            self.keeper.pending.append(record)
        self._settled = True
        for listener in self.listeners:
            listener.round(record)
        if self.keeper is not None and self.keeper.due():
            self.keeper.save(run, self.memories)

    def _reached(self, record: RoundRecord | None) -> bool:
        return record is not None and self.evaluator.reached(self.evaluator.headline(record.metrics))


class _Since(Mapping[str, int | None]):
    """Client -> the round of its memory, looked up when asked for."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories

    def __getitem__(self, client: str) -> int | None:
        return self._memories.version(client)

    def get(self, client: str, default: Any = None) -> Any:
        return self._memories.version(client)

    def __iter__(self) -> Iterator[str]:
        raise TypeError("ask for a client; there may be millions.")

    def __len__(self) -> int:
        raise TypeError("ask for a client; there may be millions.")


def _traffic(course: Round) -> dict[str, Metric]:
    """Bytes by client, the training losses clients let be seen, and how many answered."""
    clients = set(course.cohort.ids)
    metrics = {
        "up/bytes": Metric(sum(course.up.values()), dict(course.up)),
        "down/bytes": Metric(sum(course.down.values()), dict(course.down)),
        "cohort": Metric(sum(1 for sender in course.up if sender in clients)),
    }
    losses = {client: float(seen["loss"]) for client, seen in course.observed.items() if "loss" in seen}
    if losses:
        metrics["train/loss"] = Metric(sum(losses.values()) / len(losses), losses)
    return metrics

"""The round loop: sample, play, evaluate, record, checkpoint; the only one there is."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from parley.core.errors import QuorumError, StopRun, computable
from parley.core.key import Key
from parley.core.message import Memory, RowTree, State
from parley.engine.checkpointer import Checkpointer
from parley.engine.evaluation import Evaluator
from parley.engine.exchange import Round
from parley.engine.listeners import Listener
from parley.engine.reading import Readings
from parley.engine.roll_call import sentence, silent
from parley.engine.run import Run
from parley.engine.sampling import Sampler
from parley.engine.settings import Faults
from parley.engine.stopping import Stopping
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
    checkpointer: Checkpointer | None = None
    listeners: Sequence[Listener] = ()
    readings: Readings = field(default_factory=Readings)
    """What may be read of the replies, round by round."""
    spent: Mapping[str, Metric] = field(default_factory=dict)
    """What the first weights have cost (a warm start by another method), for the record of round 0."""
    _settled: bool = True
    """The state, the memories and the records belong to the same round; only then may they be saved."""

    @cached_property
    def _stopping(self) -> Stopping:
        return Stopping(self.evaluator.headline, self.evaluator.settings, self.run.records)

    def go(self) -> None:
        """Rounds until the last one, or an end before it; the run's status says which.

        finished      the last round is done, the target is reached or patience is over (`evaluate`)
        stopped       a listener raised `StopRun`, the privacy budget is spent, or too few clients answered, which is
                      raised too
        interrupted   Ctrl-C; on the command line SIGTERM and SIGHUP too
        failed        anything else was raised

        Whatever it is, all rounds that are done are part of the run and stored; it can be resumed.
        """
        with long_lived():
            self._go()

    def _go(self) -> None:
        run, stopping = self.run, self._stopping
        try:
            due = self.evaluator.due(0, last=False)
            if not run.records and (due or self.spent):
                metrics = (
                    (self._evaluate(0, run.state, {}) if due else {}) | self.readings.charged(0) | dict(self.spent)
                )
                self._finish(RoundRecord(0, metrics, tuple(self.evaluator.failures)), run.state, {})
            status = "finished"
            done = run.records[-1] if run.records else None
            while (done is None or done.number < self.rounds) and stopping.reason is None:
                if (spent := self.readings.exhausted(self._last + 1)) is not None:
                    status = "stopped"
                    run.ending = f"stopped after round {self._last} of {self.rounds}: {spent}."
                    self._tell(run.ending)
                    break
                done = self.step(self._last + 1)
            if stopping.reason is not None and done is not None and done.number < self.rounds:
                self._tell(f"stopped after round {done.number} of {self.rounds}: {stopping.reason}.")
        except StopRun as stop:
            status = "stopped"
            self._tell(f"stopped by a listener after round {self._last}" + (f": {stop}" if str(stop) else "."))
        except QuorumError as error:
            status, run.ending = "stopped", str(error)
            raise
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        except BaseException as error:
            status, run.ending = "failed", f"failed after round {self._last}: {_line(error)}"
            raise
        finally:
            run.status = status
            if self.checkpointer is not None and self._settled:
                self.checkpointer.save(run, self.memories, status)
            elif self.checkpointer is not None:  # interrupted between two of them; the last checkpoint stands
                self.checkpointer.store.commit(self.checkpointer.run, [], status=status)
            self._call_roll()
            for listener in self.listeners:
                listener.end(run)

    @property
    def _last(self) -> int:
        return self.run.records[-1].number if self.run.records else 0

    def _tell(self, text: str) -> None:
        for listener in self.listeners:
            listener.note(text)

    def _call_roll(self) -> None:
        """Say loudly who never contributed; without a listener that does, on standard error."""
        missing = silent(self.run.records)
        if not missing:
            return
        for listener in self.listeners:
            listener.warning(sentence(missing))
        if all(type(listener).warning is Listener.warning for listener in self.listeners):
            logging.getLogger("parley").warning("%s: %s", self.run.name or "run", sentence(missing))

    def step(self, number: int) -> RoundRecord:
        """One round and its record."""
        begin = time.perf_counter()
        cohort = replace(self.sampler.draw(number), since=_Since(self.memories))
        stamp = Stamp(self.run.id or "", number, 0, self._durable(number))
        current = Round(
            self.job,
            self.runtime,
            self.memories,
            self.faults,
            self.key.fold("round", number),
            self.readings.of(self.job, cohort, number),
            self.sampler.absences(cohort, number),
            stamp,
            self.listeners,
        )
        with computable(f"round {number} of {self.job.algorithm.title}"):
            state = current.play(self.run.state)
        seconds = time.perf_counter() - begin
        metrics = (
            _traffic(current, self.readings.shows_clients)
            | {"seconds": Metric(seconds)}
            | self.readings.charged(number)
        )
        metrics |= {f"server/{name}": Metric(value) for name, value in current.metrics.items()}
        metrics |= {f"busy/{node}": Metric(share) for node, share in self.runtime.busy().items()}
        if self.evaluator.due(number, last=number == self.rounds or self.readings.exhausted(number + 1) is not None):
            metrics |= self._evaluate(number, state, current.remembered)
        for listener in self.listeners:
            metrics |= listener.evaluate(number, state) or {}
        if current.observed and self.readings.shows_clients:
            for listener in self.listeners:
                metrics |= listener.observe(number, current.observed) or {}
        if number == 1:
            self.evaluator.check(metrics)
        record = RoundRecord(number, metrics, (*current.failures.values(), *self.evaluator.failures))
        self._finish(record, state, current.remembered)
        return record

    def _durable(self, number: int) -> int:
        """The round up to which round `number` never goes back."""
        return self.checkpointer.durable if self.checkpointer else number - 1

    def _evaluate(self, number: int, state: State, remembered: Mapping[str, Memory]) -> dict[str, Metric]:
        begin = time.perf_counter()
        metrics = self.evaluator.measure(
            self.runtime,
            number,
            state,
            lambda client: remembered.get(client) or self.memories[client],
            lambda client: number if client in remembered else self.memories.version(client),
            self._durable(number),
        )
        self.run.counts = self.evaluator.counts
        return metrics | {"evaluate/seconds": Metric(time.perf_counter() - begin)}

    def _finish(self, record: RoundRecord, state: State, remembered: Mapping[str, Memory]) -> None:
        """Make a round part of the run. An interrupt in the middle leaves the last checkpoint as it is."""
        run = self.run
        self._settled = False
        headline = self.evaluator.headline
        if headline is not None and headline.better(value := headline.counted(record), run.best_value):
            run.best_state, run.best_round, run.best_value = state, record.number, value
        run.state = state
        self.memories.accept(record.number, remembered)
        run.records.append(record)
        if self.checkpointer is not None:
            self.checkpointer.pending.append(record)
        self._settled = True
        self._stopping.see(record)
        stop: StopRun | None = None
        for listener in self.listeners:
            try:
                listener.round(record)
            except StopRun as wanted:  # the others hear of the round too
                stop = stop or wanted
        if self.checkpointer is not None and self.checkpointer.due():
            self.checkpointer.save(run, self.memories)
        if stop is not None:
            raise stop


def _line(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}{': ' if text else ''}{text}"


@contextmanager
def long_lived() -> Iterator[None]:
    """What exists by now stays: to search through it in every collection would cost a third of a round."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


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


def _traffic(current: Round, shows_clients: bool) -> dict[str, Metric]:
    """Bytes by client, the training losses clients let be seen, and how many answered.

    Of a private run no client's values are kept, nor anything of their data without noise.
    """
    clients = set(current.cohort.ids)
    # Whoever failed in a secure sum has told its keys, and no more.
    unsummed = current.failures.keys() if current.job.channels.closing is not None else set()
    metrics = {
        "up/bytes": Metric(sum(current.up.values()), dict(current.up) if shows_clients else {}),
        "down/bytes": Metric(sum(current.down.values()), dict(current.down) if shows_clients else {}),
        "cohort": Metric(len((clients & current.up.keys()) - unsummed)),
    }
    if current.raw:
        metrics["up/raw/bytes"] = Metric(sum(current.raw.values()), dict(current.raw) if shows_clients else {})
    losses = {
        client: seen.number("loss") if isinstance(seen, RowTree) else float(seen["loss"])
        for client, seen in current.observed.items()
        if "loss" in seen
    }
    if losses and shows_clients:
        metrics["train/loss"] = Metric(sum(losses.values()) / len(losses), losses)
    return metrics

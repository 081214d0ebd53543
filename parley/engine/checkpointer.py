"""Keeps a stored run: records and checkpoints, at intervals, each valid as a whole or not at all."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from parley.core.errors import InputError
from parley.engine.run import Run
from parley.store.checkpoints import Checkpoints, expected_memories
from parley.store.memories import MEMORY, Memories
from parley.store.records import COUNTS, RoundRecord
from parley.store.runs import RunStore


@dataclass
class Checkpointer:
    """Writes records and checkpoints of a stored run, at most every `interval` seconds."""

    store: RunStore
    run: str
    interval: float = 5.0
    pending: list[RoundRecord] = field(default_factory=list)
    _last: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        folder = self.store.folder(self.run)
        self.states, self.memory_folder = Checkpoints(folder), folder / MEMORY
        self.durable = -1
        """The round of the last checkpoint; -1 before the first."""

    def due(self) -> bool:
        return time.monotonic() - self._last >= self.interval

    def save(self, run: Run, memories: Memories, status: str | None = None) -> None:
        """Commit everything so far: files first, then one transaction that makes them valid."""
        number = run.records[-1].number if run.records else 0
        states = {"last": run.state} | ({"best": run.best_state} if run.best_state is not None else {})
        kept = memories.save()
        manifest = self.states.save(number, states)
        checkpoint = {
            "round": number,
            **manifest,
            "memories": vars(kept),
            "records": len(run.records),
            "best_round": run.best_round,
            "best_value": run.best_value,
        }
        counts = {} if run.counts is None else {COUNTS: run.counts.text}
        summary = run.summary() | counts if status is not None else None
        self.store.commit(self.run, self.pending, checkpoint=checkpoint, status=status, summary=summary)
        self.pending.clear()
        self.states.committed(manifest)
        memories.committed()
        self.durable = number
        self._last = time.monotonic()

    def restore(self, run: Run, memories: Memories) -> bool:
        """Bring a run back to its last checkpoint; False if it has none yet.

        An InputError says why if anything is missing or not as the checkpoint was; then nothing is changed.
        """
        latest = self.store.checkpoint(self.run)
        if latest is None:
            self.store.rewind(self.run, -1)
            return False
        number, checkpoint = latest
        expected = expected_memories(checkpoint)
        states = self.states.load(checkpoint)
        records = [record for record in self.store.records(self.run) if record.number <= number]
        if len(records) != checkpoint["records"] or (records and records[-1].number != checkpoint["round"]):
            raise InputError(f"the records of run '{self.run}' do not belong to its checkpoint; restore the store.")
        memories.resume(number, expected)
        self.store.rewind(self.run, number)
        run.state, run.best_state = states["last"], states.get("best")
        run.best_round, run.best_value = checkpoint["best_round"], checkpoint["best_value"]
        run.records = records
        self.durable = number
        self.store.commit(self.run, [], status="running")
        return True

"""Counting the numbers that FedALS sends, from its messages: Table 2's traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from parley.algorithms.fedals import FedALS
from parley.algorithms.protocol import Cohort, Exchange
from parley.core.key import Key
from parley.core.message import Message, State
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.learn.task import Task
from parley.store.records import Metric


@dataclass(frozen=True)
class CountedFedALS(FedALS):
    """FedALS that counts the entries of its messages: `down`, `up`, and the statistics of normalisations apart."""

    entries: Counter[str] = field(default_factory=Counter, compare=False, init=False)

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Exchange:
        course = super().round(task, state, cohort, number, key)
        messages = next(course)
        self._count("down", "model", messages)
        replies = yield messages
        self._count("up", "update", replies)
        try:
            course.send(replies)
        except StopIteration as end:
            new: State = end.value
            return new
        raise AssertionError("FedALS has one exchange a round")

    def _count(self, way: str, group: str, messages: Mapping[str, Message]) -> None:
        for message in messages.values():
            self.entries[way] += sum(value.numel() for value in message[group].values())
            self.entries["buffers"] += sum(value.numel() for value in message["buffers"].values())


class SentEntries(Listener):
    """Metrics `entries/down`, `entries/up` and `entries/buffers`: numbers sent in a round by all clients together."""

    def start(self, run: Run, rounds: int) -> None:
        assert isinstance(run.algorithm, CountedFedALS)
        self._entries = run.algorithm.entries

    def observe(self, number: int, observed: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Metric]:
        counted = {f"entries/{way}": Metric(self._entries[way]) for way in ("down", "up", "buffers")}
        self._entries.clear()
        return counted

"""Who executes clients: what a runtime is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from parley.algorithms.protocol import Algorithm, Reply
from parley.core.failure import Failure
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.registry import Registry
from parley.data import Federation
from parley.learn.task import Task


@dataclass(frozen=True)
class Job:
    """What stays the same during a run."""

    algorithm: Algorithm
    task: Task
    federation: Federation


@dataclass(frozen=True, slots=True)
class Call:
    """One client's work in one exchange."""

    client: str
    message: Message
    memory: Memory
    key: Key


@dataclass(frozen=True, slots=True)
class Check:
    """Some samples on which a model is evaluated."""

    state: State
    memory: Memory | None
    client: str | None
    """The client whose own held-out samples are meant; None: the central test set."""
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """Sums over the samples of a check, so that checks can be added up exactly."""

    loss: float
    correct: float
    """Positions whose largest output is the target; NaN for regression."""
    samples: int
    positions: int


Outcome = Reply | Failure


class Runtime(Protocol):
    """Executes calls; the order of the answers is the order of the calls, whoever is done first."""

    name: str

    def run(self, calls: Sequence[Call], deadline: float | None = None) -> list[Outcome]: ...

    def evaluate(self, checks: Sequence[Check]) -> list[Score]: ...

    def close(self) -> None: ...


runtimes: Registry[Callable[[Job, int], Runtime]] = Registry("runtime")
"""Name -> function that opens the runtime for a job with so many workers."""

"""Who executes recipients: what a runtime is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from parley.algorithms.exchange import Exchange, Reply
from parley.algorithms.protocol import Algorithm
from parley.channels.base import Channels
from parley.core.context import Context
from parley.core.errors import InputError
from parley.core.failure import Failure
from parley.core.message import Memory, Message
from parley.core.registry import Registry
from parley.data import Federation
from parley.training.devices import CPU
from parley.training.metrics import Scorer
from parley.training.pooled import Counts
from parley.training.task import Task


@dataclass(frozen=True)
class Job:
    """What stays the same during a run."""

    algorithm: Algorithm
    task: Task
    federation: Federation
    channels: Channels = field(default_factory=Channels)
    secrets: bytes = bytes(16)
    """The root of all recipients' secrets in a simulation; a runtime hands each recipient its own."""
    scorers: Mapping[str, Scorer] = field(default_factory=dict)
    """What is measured besides loss and accuracy, by name."""
    pooled: bool = False
    """Clients also tell counts of their scores, which add up over clients."""
    batch: int = 1000
    """Samples that a node's evaluation puts through the model at once."""
    digits: int | None = None
    """Decimals of what clients tell of their own evaluation."""

    @property
    def judges_all(self) -> bool:
        """Whether something is measured that needs all outputs of one owner's samples at once."""
        return bool(self.scorers) or self.pooled

    @cached_property
    def server(self) -> Task:
        """The task as the server has it: on the CPU, wherever clients train."""
        return self.task.on(CPU)

    @cached_property
    def exchanges(self) -> dict[str, Exchange]:
        """What the method asks with its settings, by name."""
        return {each.name: each for each in self.algorithm.exchanges()}

    def exchange(self, asked: str) -> Exchange:
        """The declared exchange of this name; nothing else is answered."""
        if asked not in self.exchanges:
            raise InputError(f"{self.algorithm.title} declares no exchange '{asked}' with these settings.")
        return self.exchanges[asked]

    @cached_property
    def on_cpu(self) -> bool:
        """Whether clients train on the CPU."""
        return self.task.device.type == "cpu"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the calls of one exchange have in common; with the version of memory it is their envelope."""

    run: str
    round: int
    exchange: int
    durable: int
    """The round up to which the server is durable: whoever keeps memories keeps all that are later."""


@dataclass(slots=True)
class Call:
    """One recipient's work in one exchange."""

    recipient: str
    """A client's id, or a party's name."""
    message: Message
    memory: Memory
    context: Context
    party: bool = False


@dataclass(frozen=True, slots=True)
class EvaluationCall:
    """Some samples on which a model is evaluated."""

    model: Message
    memory: Memory | None
    client: str | None
    """The client whose own held-out samples are meant; None: the central test set."""
    start: int = 0
    stop: int | None = None
    batch: int = 1000
    """Samples that go through the model at once."""
    before: Tensor | None = None
    """The outputs of the model that this one continues (see `Algorithm.outputs`)."""
    keep: bool = False
    """Give the outputs back."""
    version: int | None = None
    """The round whose memory is meant, where a node holds it."""
    round: int = 0
    """After which the model is evaluated."""
    durable: int = 0
    """The round up to which the server is durable, as of a `Stamp`."""


@dataclass(frozen=True, slots=True)
class Score:
    """Sums over samples, so that scores can be added up exactly, and what is measured on all of an owner's at once."""

    loss: float
    correct: float
    """Positions whose largest output is the target; NaN for regression."""
    samples: int
    positions: int
    values: Mapping[str, float] = field(default_factory=dict)
    """Metrics by name; NaN where one is not defined for these samples."""
    outputs: Tensor | None = None
    counts: Counts | None = None

    def rounded(self, digits: int | None) -> Score:
        """With so many decimals of what is measured for one sample on average; of what is rounded already, the same."""
        if digits is None:
            return self
        values = {name: round(value, digits) for name, value in self.values.items()}
        loss, correct = _rounded(self.loss, self.samples, digits), _rounded(self.correct, self.positions, digits)
        return replace(self, loss=loss, correct=correct, values=values)


def _rounded(total: float, count: int, digits: int) -> float:
    return round(total / count, digits) * count if count else total


Answer = Reply | Failure
_HELD = "held-version"


def held(version: str) -> Memory:
    """What stands for a version of a memory that a recipient holds itself."""
    return Memory(scalars={_HELD: version})


def version_held(memory: Memory) -> str | None:
    """The version that such a memory stands for; None if it is none of these."""
    version = memory.scalars.get(_HELD)
    return None if version is None else str(version)


class Runtime(Protocol):
    """Executes calls; the order of the answers is the order of the calls, whoever is done first."""

    name: str
    holds_memories: bool
    """Recipients keep their memories themselves: in calls and replies stands the name of a version (`held`)."""
    folder: Path | None
    """Of a stored run: where what recipients hold stays, so that a resumed run finds it again."""

    def run(self, calls: Sequence[Call], stamp: Stamp, deadline: float | None = None) -> list[Answer]: ...

    def evaluate(self, calls: Sequence[EvaluationCall]) -> list[Score | Failure]: ...

    def busy(self) -> Mapping[str, float]:
        """Node -> the share of its workers' time that clients took since this was last asked; {} on one machine."""
        ...

    def close(self) -> None: ...


runtimes: Registry[Callable[[Job, int], Any]] = Registry("runtime")
"""Name -> function that opens the runtime for a job with so many workers."""

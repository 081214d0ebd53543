"""Recipients elsewhere: what the server of any runtime does whose nodes see encoded bytes only (see `node`).

Such a runtime says how frames reach nodes and how their answers come back (`ask`); nothing that comes back is trusted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parley.algorithms.base.exchange import Reply
from parley.core.errors import UnsupportedError, WireError
from parley.core.failure import Failure
from parley.core.message import Memory, Message
from parley.core.wire import decode, encode
from parley.runtimes.execute import evaluate, finite
from parley.runtimes.frame import unpack
from parley.runtimes.node import Envelope, call_frame, evaluation_frame
from parley.runtimes.protocol import Answer, Call, EvaluationCall, Job, Score, Stamp, held, version_held

Named = tuple[str, bool]
"""A recipient and whether it is a party."""


class Remote(ABC):
    """Frames what nodes are asked and reads what they answer."""

    name: str
    holds_memories = True

    def __init__(self, job: Job) -> None:
        if job.algorithm.needs.pooled:
            raise UnsupportedError(
                f"{job.algorithm.title} needs all data in one place, which nodes never give away; use another runtime."
            )
        self.job = job
        self.folder: Path | None = None

    @abstractmethod
    def ask(
        self, named: Sequence[Named], frame: Callable[[int], bytes], deadline: float | None
    ) -> list[bytes | Failure]:
        """Each recipient's answer to its frame, in their order; who is done first does not matter."""

    @abstractmethod
    def close(self) -> None: ...

    def busy(self) -> dict[str, float]:
        return {}

    def run(self, calls: Sequence[Call], stamp: Stamp, deadline: float | None = None) -> list[Answer]:
        encoded: dict[int, bytes] = {}

        def frame(call: Call) -> bytes:
            if id(call.message) not in encoded:
                encoded[id(call.message)] = encode(call.message)
            envelope = Envelope(
                stamp.run, stamp.incarnation, stamp.round, stamp.exchange, call.context.asked, _version(call.memory),
                stamp.durable, call.context.round_key.digest.hex(), call.recipient, call.party,
            )  # fmt: skip
            return call_frame(envelope, encoded[id(call.message)])

        named = [(call.recipient, call.party) for call in calls]
        answers = self.ask(named, lambda i: frame(calls[i]), deadline)
        return [_answer(name, data) for (name, _), data in zip(named, answers, strict=True)]

    def evaluate(self, calls: Sequence[EvaluationCall]) -> list[Score | Failure]:
        """Clients evaluate on their nodes; the central test set is the server's."""
        encoded: dict[int, bytes] = {}

        def frame(call: EvaluationCall) -> bytes:
            if id(call.model) not in encoded:
                encoded[id(call.model)] = encode(call.model)
            return evaluation_frame(call, _version(call.memory or Memory()), encoded[id(call.model)])

        theirs = [call for call in calls if call.client is not None]
        named = [(str(call.client), False) for call in theirs]
        answers = self.ask(named, lambda i: frame(theirs[i]), None)
        scores = iter([_score(name, data) for (name, _), data in zip(named, answers, strict=True)])
        return [evaluate(self.job, call) if call.client is None else next(scores) for call in calls]


def _version(memory: Memory) -> str | None:
    if (memory.tensors or memory.scalars) and version_held(memory) is None:
        raise UnsupportedError(
            "the memories of this run are the server's, where nodes have their own; resume it with the runtime that "
            "it was started with."
        )
    return version_held(memory)


def _answer(recipient: str, data: bytes | Failure) -> Answer:
    head, parts = _read(recipient, data, "reply", 2)
    if isinstance(head, Failure):
        return head
    try:
        message, observed = (decode(part, Message) for part in parts)
    except (WireError, ValueError) as error:
        return Failure(recipient, f"sent bytes that are no reply: {error}")
    if not finite(message):
        return Failure(recipient, "sent NaN or infinite numbers in its message.")
    version = head.get("version")
    return Reply(message, None if version is None else held(str(version)), observed.tensors)


def _score(recipient: str, data: bytes | Failure) -> Score | Failure:
    head, _ = _read(recipient, data, "score", 0)
    if isinstance(head, Failure):
        return head
    try:
        values = {str(name): float(value) for name, value in dict(head["values"]).items()}
        loss, correct = float(head["loss"]), float(head["correct"])
        return Score(loss, correct, int(head["samples"]), int(head["positions"]), values)
    except (KeyError, TypeError, ValueError, OverflowError):
        return Failure(recipient, "sent bytes that are no score.")


def _read(recipient: str, data: bytes | Failure, kind: str, parts: int) -> tuple[dict[str, Any] | Failure, list[bytes]]:
    """Head and parts of an answer of this kind, or the failure that it is."""
    if isinstance(data, Failure):
        return data, []
    try:
        head, found = unpack(data)
    except WireError as error:
        return Failure(recipient, f"sent bytes that are no reply: {error}"), []
    if head.get("kind") == "failure":
        reason, trace = str(head.get("reason", "failed.")), str(head.get("trace", ""))
        return Failure(recipient, reason, trace, head.get("fatal") is True, head.get("lost") is True), []
    if head.get("kind") != kind or len(found) != parts:
        return Failure(recipient, f"sent something else than a {kind}."), []
    return head, found

"""Recipients elsewhere: what the server of any runtime does whose nodes see encoded bytes only (see `node`).

Such a runtime says how frames reach nodes and how their answers come back (`ask`); nothing that comes back is trusted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

from parley.algorithms.exchange import Reply
from parley.core.errors import QuorumError, UnsupportedError, WireError
from parley.core.failure import Failure
from parley.core.message import Memory, Message
from parley.core.text import printable
from parley.core.wire import decode, encode
from parley.runtimes.execute import evaluate, finite
from parley.runtimes.frame import unpack
from parley.runtimes.ledger import EVALUATION
from parley.runtimes.node import Envelope, EvaluationEnvelope, call_frame, evaluation_frame
from parley.runtimes.outbox import Outbox, Step
from parley.runtimes.protocol import Answer, Call, EvaluationCall, Job, Score, Stamp, held, version_held
from parley.training.pooled import Counts

Named = tuple[str, bool]
"""A recipient and whether it is a party."""
T = TypeVar("T")
_PATIENCE = 60.0
"""Seconds in which who answered before the server was started again must do so once more."""


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

    @cached_property
    def _outbox(self) -> Outbox:
        return Outbox(None if self.folder is None else self.folder.with_name("outbox.db"))

    def run(self, calls: Sequence[Call], stamp: Stamp, deadline: float | None = None) -> list[Answer]:
        encoded = _Encoded()
        envelopes = [
            Envelope(
                stamp.run,
                self._outbox.incarnation,
                stamp.round,
                stamp.exchange,
                call.context.asked,
                _version(call.memory),
                stamp.durable,
                call.context.round_key.digest.hex(),
                call.recipient,
                call.party,
            )
            for call in calls
        ]
        digests = [e.question(encoded[c.message]).digest.hex() for e, c in zip(envelopes, calls, strict=True)]
        return self._asked(
            (stamp.round, stamp.exchange),
            [(call.recipient, call.party) for call in calls],
            digests,
            stamp.durable,
            lambda i: call_frame(envelopes[i], encoded[calls[i].message]),
            _answer,
            deadline,
        )

    def evaluate(self, calls: Sequence[EvaluationCall]) -> list[Score | Failure]:
        """Clients evaluate on their nodes, all their held-out samples; the central test set is the server's."""
        encoded, theirs = _Encoded(), [call for call in calls if call.client is not None]
        if not theirs:
            return [evaluate(self.job, call) for call in calls]
        number, durable = theirs[0].round, theirs[0].durable
        envelopes = [
            EvaluationEnvelope(
                self._outbox.incarnation, number, _version(call.memory or Memory()), durable, str(call.client)
            )
            for call in theirs
        ]
        digests = [e.question(encoded[c.model]).digest.hex() for e, c in zip(envelopes, theirs, strict=True)]
        answers = self._asked(
            (number, EVALUATION),
            [(str(call.client), False) for call in theirs],
            digests,
            durable,
            lambda i: evaluation_frame(envelopes[i], encoded[theirs[i].model]),
            self._score,
            None,
        )
        scores = iter(answers)
        return [evaluate(self.job, call) if call.client is None else next(scores) for call in calls]

    def _score(self, recipient: str, data: bytes | Failure) -> Score | Failure:
        """A score of the samples that the recipient has; one of more would count for more than all others."""
        score = _score(recipient, data)
        if isinstance(score, Failure):
            return score
        likely = math.isnan(score.correct) or 0 <= score.correct <= score.positions * (1 + 1e-9)
        known = score.samples == self.job.federation.test_size(recipient) and score.positions >= 0
        if not likely or not known or score.values.keys() - self.job.scorers.keys():
            return Failure(recipient, "gave a score that its held-out samples cannot have.")
        return score

    def _asked(
        self,
        position: Step,
        named: Sequence[Named],
        digests: Sequence[str],
        durable: int,
        frame: Callable[[int], bytes],
        read: Callable[[str, bytes | Failure], T | Failure],
        deadline: float | None,
    ) -> list[T | Failure]:
        """The answers, as `read`; of an exchange that was played before, those of whoever answered then."""
        names = [name for name, _ in named]
        before = self._outbox.leave(position, dict(zip(names, digests, strict=True)), durable)
        answers: dict[int, T | Failure] = {}
        for i, name in enumerate(names):
            if before is not None and (failed := before[name]) is not None:
                answers[i] = failed
        until = monotonic() + (deadline or _PATIENCE)
        while missing := [i for i in range(len(named)) if i not in answers]:
            frames = self.ask([named[i] for i in missing], _of(frame, missing), deadline)
            fresh = {i: read(names[i], data) for i, data in zip(missing, frames, strict=True)}
            absent = next((answer for answer in fresh.values() if isinstance(answer, Failure)), None)
            if before is None or absent is None:
                answers |= fresh
                break
            answers |= {i: answer for i, answer in fresh.items() if not isinstance(answer, Failure)}
            if monotonic() > until:
                raise QuorumError(
                    f"round {position[0]}: '{absent.client}' answered before the server was started again, and now it "
                    f"{absent.reason.rstrip('.')}; the run stopped at its last checkpoint; resume it when that node is "
                    "back."
                )
            sleep(1.0)
        ordered = [answers[i] for i in range(len(named))]
        self._outbox.answered(
            position,
            {n: answer if isinstance(answer, Failure) else None for n, answer in zip(names, ordered, strict=True)},
        )
        return ordered


def _of(frame: Callable[[int], bytes], some: Sequence[int]) -> Callable[[int], bytes]:
    """The frames of some recipients, numbered anew."""
    return lambda number: frame(some[number])


class _Encoded:
    """The bytes of messages, of each once; it holds on to them, so that their ids stay their own."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Message, bytes]] = {}

    def __getitem__(self, message: Message) -> bytes:
        if id(message) not in self._known:
            self._known[id(message)] = (message, encode(message))
        return self._known[id(message)][1]


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
        counts = None if head.get("counts") is None else Counts.read(head["counts"])
        return Score(loss, correct, int(head["samples"]), int(head["positions"]), values, counts=counts)
    except (KeyError, TypeError, ValueError, OverflowError):
        return Failure(recipient, "sent bytes that are no score.")


def _read(recipient: str, data: bytes | Failure, kind: str, parts: int) -> tuple[dict[str, Any] | Failure, list[bytes]]:
    """Head and parts of an answer of this kind, or the failure that it is."""
    if isinstance(data, Failure):
        return data, []
    try:
        head, parsed = unpack(data)
    except WireError as error:
        return Failure(recipient, f"sent bytes that are no reply: {error}"), []
    if head.get("kind") == "failure":
        reason, trace = printable(head.get("reason", "failed.")), str(head.get("trace", "")).encode("utf-8", "replace")
        return Failure(recipient, reason, trace.decode(), head.get("fatal") is True, head.get("lost") is True), []
    if head.get("kind") != kind or len(parsed) != parts:
        return Failure(recipient, f"sent something else than a {kind}."), []
    return head, parsed

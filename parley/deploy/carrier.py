"""Frames over Flower: bytes into records and back, questions to nodes and answers from them, with bounded waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from parley.core.failure import Failure

_GROUP, _NAME = "parley", "frame"
POLL = 0.3
"""Seconds between two looks at what has come."""
_ERRORS = {
    1: "could not load its program",
    2: "its program failed",
    3: "its answer was lost on the way",
    4: "its answer was lost on the way",
    5: "went away before it answered",
    7: "refused Flower's application",
    8: "its program died",
}


def record_of(data: bytes) -> Any:
    """Bytes as Flower carries them: an array, which it cuts into pieces."""
    from flwr.app import Array, ArrayRecord, RecordDict

    return RecordDict({_GROUP: ArrayRecord({_NAME: Array("uint8", (len(data),), "parley.frame", data)})})


def bytes_of(record: Any) -> bytes:
    """The bytes back; nothing if there are none, which is no frame."""
    try:
        return bytes(record[_GROUP][_NAME].data)
    except (KeyError, TypeError, AttributeError):
        return b""


@dataclass
class Carrier:
    """Questions to nodes by name."""

    grid: Any
    """Flower's connection to the nodes."""
    numbers: Mapping[str, int]
    """Name -> the number under which Flower knows the node."""
    largest: int
    """Bytes of an answer."""
    stopped: Callable[[], None] = lambda: None
    """Called while waiting; raises what is to end the wait."""
    _under_way: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Message id -> whom it was sent to, and until when its answer counts."""

    def online(self) -> set[str]:
        """The nodes that Flower has heard of lately."""
        connected = set(self.grid.get_node_ids())
        return {name for name, number in self.numbers.items() if number in connected}

    def send(self, name: str, frame: bytes, seconds: float, group: str = "") -> None:
        """Ask a node; its answer is among those that `received` gives within so many seconds."""
        from flwr.app import Message

        message = Message(record_of(frame), self.numbers[name], "query", ttl=seconds + 60.0, group_id=group)
        (sent,) = self.grid.push_messages([message])
        if sent is None:
            raise ConnectionError(f"Flower took no message for '{name}'.")
        self._under_way[sent] = (name, time.monotonic() + seconds)

    def waiting(self) -> set[str]:
        """Who has been asked and may still answer."""
        return {name for name, _ in self._under_way.values()}

    def received(self) -> dict[str, bytes | Failure]:
        """What has come since the last time, also by default: who is late has failed."""
        self.stopped()
        answers: dict[str, bytes | Failure] = {}
        for message in self.grid.pull_messages(list(self._under_way)) if self._under_way else ():
            asked = self._under_way.pop(message.metadata.reply_to_message_id, None)
            if asked is not None:
                answers[asked[0]] = self._read(asked[0], message)
        for sent, (name, until) in list(self._under_way.items()):
            if time.monotonic() > until:
                del self._under_way[sent]
                answers[name] = Failure(name, "gave no answer in time.")
        return answers

    def ask(self, frames: Mapping[str, Callable[[], bytes]], seconds: float, group: str) -> dict[str, bytes | Failure]:
        """Ask several nodes and wait for all of them, or until the time is over."""
        self._under_way.clear()  # answers to earlier questions come too late
        connected = self.online()
        answers: dict[str, bytes | Failure] = {}
        for name, frame in frames.items():
            if name not in connected:
                answers[name] = Failure(name, "is not connected.")
            else:
                self.send(name, frame(), seconds, group)
        while self.waiting():
            answers |= self.received()
            if self.waiting():
                time.sleep(POLL)
        return {
            name: Failure(name, f"gave no answer within {seconds:g} s.") if _late(answers[name]) else answers[name]
            for name in frames
        }

    def _read(self, name: str, message: Any) -> bytes | Failure:
        if message.has_error():
            error = message.error
            first = ((error.reason or "").strip().splitlines() or [""])[0][:300]
            what = _ERRORS.get(error.code, "failed")
            return Failure(name, f"{what} ({first})." if first and error.code in (1, 2, 8) else f"{what}.")
        data = bytes_of(message.content)
        if len(data) > self.largest:
            return Failure(name, f"sent {len(data)} bytes, more than the {self.largest} that are allowed.")
        return data


def _late(answer: bytes | Failure) -> bool:
    return isinstance(answer, Failure) and answer.reason == "gave no answer in time."

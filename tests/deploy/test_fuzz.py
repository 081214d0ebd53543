"""What comes from the other side may be any bytes: they are read or refused, never anything else."""

from __future__ import annotations

import random

import pytest
import torch

from parley.algorithms.exchange import Reply
from parley.core.errors import WireError
from parley.core.failure import Failure
from parley.core.message import Message
from parley.core.wire import encode
from parley.runtimes.frame import pack, unpack
from parley.runtimes.node import Envelope, call_frame
from parley.runtimes.protocol import Score
from parley.runtimes.remote import _answer, _score

MESSAGE = encode(Message.of(model={"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(2)}, samples=3))
SAMPLES = (
    pack({"kind": "reply", "version": "1-0"}, MESSAGE, encode(Message())),
    pack({"kind": "score", "loss": 1.0, "correct": 2.0, "samples": 3, "positions": 3, "values": {"auc": 0.5}}),
    pack({"kind": "failure", "reason": "x", "trace": "", "fatal": False, "lost": False}),
    call_frame(Envelope("r", 1, 2, 0, "client", None, 1, "0" * 32, "a", False), MESSAGE),
)
PIECES = (b"", b"\0", b"\xff" * 8, b'"', b"{", b"]", b"1e999", b"NaN", b"null", b"-1", b"F64", b"\x80\x00", b"reply")


def mutated(random_: random.Random) -> bytes:
    data = bytearray(random_.choice(SAMPLES))
    for _ in range(1 + random_.randrange(4)):
        place = random_.randrange(len(data) + 1)
        data[place : place + random_.randrange(5)] = random_.choice(PIECES)
    return bytes(data)


def read(data: bytes) -> None:
    answer = _answer("a", data)
    assert isinstance(answer, Reply | Failure)
    if isinstance(answer, Reply):
        assert all(bool(torch.isfinite(value).all()) for value in answer.message.tensors.values())
    assert isinstance(_score("a", data), Score | Failure)
    try:
        head, _ = unpack(data)
        head.pop("kind", None)
        Envelope.read(head)
    except WireError:
        pass


def test_any_bytes_are_read_or_refused():
    random_ = random.Random(0)
    for _ in range(3000):
        read(mutated(random_))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_mutated_frames_are_read_or_refused():
    random_ = random.Random(1)
    for _ in range(1_000_000):
        read(mutated(random_))

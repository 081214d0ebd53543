"""A node with its folder, without any process: asked twice, lied to, killed between any two messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import Algorithm
from parley.core.context import Secrets, recipient_root
from parley.core.errors import WireError
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.wire import decode, encode
from parley.data import Federation
from parley.models import mlp
from parley.runtimes.frame import pack, unpack
from parley.runtimes.node import Envelope, Node, call_frame, create, handle
from parley.runtimes.protocol import Job
from parley.study.train import make_task

ROOT = bytes(range(16))


class Counting(Algorithm):
    """Counts in its memory what was accepted, and in `worked` how often it really worked."""

    def __init__(self) -> None:
        self.worked = 0
        self.refuses = False

    def init(self, task, key):
        return State()

    @exchange(times=3)
    def client(self, task, message, memory, data, context):
        self.worked += 1
        if self.refuses:
            raise RuntimeError("not now")
        done = int(memory.scalars.get("done", 0)) + 1
        secret = int.from_bytes(context.secrets.bytes("own", 4), "little")
        return Reply(Message.of(done=done, samples=len(data), secret=secret), Memory.of(done=done))


@pytest.fixture(scope="module")
def federation() -> Federation:
    random = np.random.default_rng(0)
    clients = {name: (random.normal(size=(6, 3)), random.normal(size=6)) for name in ("a", "b")}
    return Federation.from_arrays(clients, test_fraction=0.4)


def node_of(folder: Path, federation: Federation) -> Node:
    job = Job(Counting(), make_task(federation, mlp(2), 0), federation, secrets=ROOT)
    create(folder, "a", recipient_root(ROOT, "a"), federation.client("a"), federation.client_test("a"))
    return Node.open(folder, replace(job, secrets=b""))


@pytest.fixture
def node(tmp_path: Path, federation: Federation) -> Node:
    return node_of(tmp_path / "node", federation)


def envelope(number: int, version: str | None = None, durable: int = 0, **more) -> Envelope:
    first = Envelope("run", 7, number, 0, "client", version, durable, Key(0).digest.hex(), "a", False)
    return replace(first, **more)


def sent(node: Node, letter: Envelope, message: Message | None = None):
    """The head of the answer and its message."""
    head, parts = unpack(handle(node, call_frame(letter, encode(message or Message()))))
    return head, (decode(parts[0]) if parts else None)


def test_it_has_its_own_data_and_secret_only(node: Node, federation: Federation):
    assert node.job.federation.ids == ("a",)
    assert torch.equal(node.job.federation.client("a").x, federation.client("a").x)
    assert torch.equal(node.job.federation.client_test("a").y, federation.client_test("a").y)
    assert (node.folder / "secret").stat().st_mode & 0o777 == 0o600
    assert node.folder.stat().st_mode & 0o777 == 0o700
    head, reply = sent(node, envelope(3))
    inline = Secrets(ROOT, (3, "client", 0), "a").bytes("own", 4)
    assert reply.number("secret") == int.from_bytes(inline, "little")
    assert head["version"] == "3-0"


def test_a_message_asked_twice_is_answered_once(node: Node):
    data = call_frame(envelope(1), encode(Message.of(a=1)))
    first = handle(node, data)
    again = handle(Node.open(node.folder, node.job), data)  # also after it was started anew
    assert first == again
    assert node.job.algorithm.worked == 1
    head, _ = sent(node, envelope(1), Message.of(a=2))
    assert head["kind"] == "failure"
    assert "with another message" in head["reason"]
    sent(node, envelope(2, "1-0"))
    assert handle(node, data) == first  # the server is not durable beyond it yet
    sent(node, envelope(3, "2-0", 1))
    assert "keeps the answer no longer" in unpack(handle(node, data))[0]["reason"]
    assert "another message" in sent(node, envelope(1), Message.of(a=2))[0]["reason"]


def test_a_failure_is_not_remembered(node: Node):
    node.job.algorithm.refuses = True
    head, _ = sent(node, envelope(1))
    assert head["kind"] == "failure"
    assert not list(node.folder.glob("memory-*"))
    node.job.algorithm.refuses = False
    assert sent(node, envelope(1))[1].number("done") == 1


def test_a_memory_it_lacks_is_lost(node: Node):
    sent(node, envelope(1))
    head, _ = sent(node, envelope(2, "1-1"))
    assert (head["kind"], head["lost"]) == ("failure", True)
    assert sent(node, envelope(2, "1-0"))[1].number("done") == 2
    (node.folder / "memory-2-0").write_bytes(b"half a file")
    assert sent(node, envelope(3, "2-0"))[0]["lost"]
    assert sent(node, envelope(4))[1].number("done") == 1


def test_a_version_that_was_never_accepted_does_not_push_out_the_one_that_was(node: Node):
    """Its answer of round 5 was too late; round 7 goes on from round 3, though the server is durable beyond both."""
    sent(node, envelope(3))
    sent(node, envelope(5, "3-0", 2))
    sent(node, envelope(7, "3-0", 6))
    assert sorted(path.name for path in node.folder.glob("memory-*")) == ["memory-3-0", "memory-7-0"]


def test_later_exchanges_build_on_earlier_ones(node: Node):
    sent(node, envelope(1))
    assert sent(node, envelope(1, "1-0", exchange=1))[1].number("done") == 2
    assert sent(node, envelope(1, "1-0", exchange=2))[1].number("done") == 2  # that of exchange 1 was refused
    assert sent(node, envelope(2, "1-2", 1))[1].number("done") == 3


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["ask", "reject", "save", "crash"]), max_size=20))
def test_whatever_happens_to_the_server_the_node_has_what_it_names(tmp_path_factory, federation, steps):
    """After a crash the server plays the rounds since its checkpoint again, with the same roll-calls."""
    node = node_of(tmp_path_factory.mktemp("node"), federation)
    number, start, version, done, durable = 0, 1, None, 0, (0, None, 0)
    heard: dict[int, tuple[str, dict]] = {}
    for step in steps:
        if step == "save":
            durable = (number, version, done)
        elif step == "crash":
            start += 1
            number, version, done = durable
        else:
            number += 1
            _, reply = sent(node, envelope(number, version, durable[0], incarnation=start))
            assert reply is not None
            assert reply.number("done") == done + 1
            accepted, before = heard.setdefault(number, (step, reply.scalars))
            assert reply.scalars == before
            if accepted == "ask":
                version, done = f"{number}-0", done + 1
    sent(node, envelope(max([number, *heard]) + 1, version, number, incarnation=start))
    left = {path.name for path in node.folder.glob("memory-*")}
    assert {name for name in left if int(name.split("-")[1]) <= number} == ({f"memory-{version}"} if version else set())
    assert node.job.algorithm.worked == len(heard) + 1


FRAME = call_frame(envelope(1), encode(Message.of(a=torch.ones(3))))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_hostile_bytes_are_answered_with_what_is_wrong(node: Node, data):
    bad = data.draw(
        st.one_of(
            st.binary(max_size=200),
            st.integers(0, len(FRAME) - 1).map(lambda cut: FRAME[:cut]),
            st.tuples(st.integers(0, len(FRAME) - 1), st.integers(1, 255)).map(
                lambda at: FRAME[: at[0]] + bytes([FRAME[at[0]] ^ at[1]]) + FRAME[at[0] + 1 :]
            ),
        )
    )
    head, _ = unpack(handle(node, bad))
    assert head["kind"] in ("failure", "reply")
    if head["kind"] == "failure":
        assert head["reason"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": "../../secret"}, "not a version"),
        ({"version": "1"}, "not a version"),
        ({"recipient": "b"}, "not a message to 'a'"),
        ({"durable": 1}, "do not follow"),
        ({"round": 10**30, "durable": 0}, "not a version"),
        ({"round": True}, "'round' in the envelope is a bool"),
        ({"incarnation": -1}, "which start of the server"),
        ({"round_key": "zz"}, "hexadecimal"),
        ({"more": 1}, "has an unknown 'more'"),
        ({"kind": "secrets"}, "answers calls and evaluations"),
        ({"asked": "_private"}, "declares no exchange '_private'"),
    ],
)
def test_envelopes_are_checked(node: Node, changes, says: str):
    good, parts = unpack(FRAME)
    head, _ = unpack(handle(node, pack(good | changes, *parts)))
    assert head["kind"] == "failure"
    assert says in head["reason"]
    assert node.job.algorithm.worked == 0


def test_frames_give_back_what_was_packed():
    head = {"a": 1, "b": None, "c": "\u2603"}
    assert unpack(pack(head, b"", b"xyz")) == (head, [b"", b"xyz"])
    for bad in (b"", b"\x01", pack(head, b"xyz")[:-1], pack(head, b"xyz") + b"!", (5).to_bytes(4, "little") + b"[1,2]"):
        with pytest.raises(WireError, match="not a frame"):
            unpack(bad)

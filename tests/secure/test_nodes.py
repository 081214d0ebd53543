"""Nodes that a server asks for more than a sum: each stage is answered once, at its place, and never again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import parley as pl
from parley.channels.base import Channels
from parley.core.context import recipient_root
from parley.core.key import Key
from parley.core.message import Message
from parley.core.wire import decode, encode
from parley.runtimes.frame import unpack
from parley.runtimes.ledger import Ledger
from parley.runtimes.node import Envelope, Node, call_frame, create, handle
from parley.runtimes.protocol import Job
from parley.secure import SecureSum, secure_sum
from parley.secure.channel import GROUP, KEYS, SHARES, UNMASK, exchange_of
from parley.study.task import make_task

NAMES = ("a", "b", "c", "d")


class Server:
    """Speaks to some nodes; sums are at round 1, exchange 0 unless it says otherwise."""

    def __init__(self, folder: Path, names: Sequence[str] = NAMES, channel: SecureSum | None = None) -> None:
        self.names, self.channel = names, channel or secure_sum()
        random = np.random.default_rng(0)
        federation = pl.Federation.from_arrays({n: (random.normal(size=(6, 3)), np.arange(6) % 2) for n in names})
        algorithm = pl.FedAvg(lr=0.1)
        self.task = make_task(federation, pl.models.mlp(2), 0)
        self.state = algorithm.init(self.task, Key(0))
        self.nodes = {}
        for name in names:
            job = Job(algorithm, self.task, federation, Channels.of(algorithm, self.channel))
            create(folder / name, name, recipient_root(bytes(16), name), federation.client(name))
            self.nodes[name] = Node.open(folder / name, job)

    def ask(self, name: str, asked: str, message: Message, number: int = 1, **more: Any) -> tuple[Any, Message | None]:
        exchange = exchange_of(asked, 0)
        letter = Envelope("run", 7, number, exchange, asked, None, 0, Key(0).fold(name).digest.hex(), name, False)
        frame = call_frame(replace(letter, **more), encode(message))
        head, parts = unpack(handle(self.nodes[name], frame))
        return head, decode(parts[0]) if parts else None

    def up_to_masked(self, number: int = 1) -> dict[str, Message]:
        """The messages by which each node would be asked to unmask a sum of everybody's replies."""
        keys = {name: self.ask(name, KEYS, Message(), number)[1].tensor("keys") for name in NAMES}
        common = {"keys": torch.stack(list(keys.values())), "factors": torch.ones(4, dtype=torch.float64)}
        shared = {name: self.ask(name, SHARES, Message.of(**{GROUP: common}), number)[1] for name in NAMES}
        common["there"] = torch.ones(4, dtype=torch.bool)
        tickets = torch.stack([shared[name].tensor("ticket") for name in NAMES])
        self.message = Message.of(model=self.state["model"], **{GROUP: {**common, "tickets": tickets}})
        signed = {}
        for name in NAMES:
            head, reply = self.ask(name, "client", self.message, number)
            assert head["kind"] == "reply", head
            signed[name] = reply.tensor("ticket")
        return {
            name: Message.of(
                **{
                    GROUP: common
                    | {
                        "summed": torch.ones(4, dtype=torch.bool),
                        "ticket": signed[name],
                        "boxes": torch.stack([shared[other].tensor("boxes")[i] for other in NAMES]),
                    }
                }
            )
            for i, name in enumerate(NAMES)
        }


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def without(message: Message, number: int) -> Message:
    """The same question, a client being called missing that is in the sum."""
    summed = message[GROUP]["summed"].clone()
    summed[number] = False
    return message.replace(**{GROUP: message[GROUP] | {"summed": summed}})


def check_one_unmask_only(server: Server) -> None:
    """Who has told its share of a client's seed never tells that of its key, however the server goes about it."""
    asking = server.up_to_masked()
    head, told = server.ask("a", UNMASK, asking["a"])
    assert head["kind"] == "reply"
    again, same = server.ask("a", UNMASK, asking["a"])
    assert again["kind"] == "reply"
    assert torch.equal(told.tensor("shares"), same.tensor("shares"))  # a message that was lost on the way
    other = without(asking["a"], 3)
    for more in (
        {},  # another list at the same place
        {"exchange": exchange_of(UNMASK, 0) + 1},  # at another place
        {"exchange": 3},
        {"number": 2},  # in another round
    ):
        head, told = server.ask("a", UNMASK, other, **more)
        assert head["kind"] == "failure", more
        assert told is None
    server.ask("a", KEYS, Message(), 2)  # the next round begins, and replies of this one are forgotten
    head, _ = server.ask("a", UNMASK, other)
    assert head["kind"] == "failure"
    assert "with another message" in head["reason"]
    server.ask("a", KEYS, Message(), 2, incarnation=8)  # another start of the run, and back
    for start in (7, 8, 9):
        head, _ = server.ask("a", UNMASK, other, incarnation=start)
        assert head["kind"] == "failure"


def test_a_node_unmasks_once(server: Server):
    check_one_unmask_only(server)


@pytest.mark.parametrize("mistake", ["no place", "no ledger"])
def test_a_planted_mistake_is_found(server: Server, monkeypatch: pytest.MonkeyPatch, mistake: str):
    if mistake == "no place":
        monkeypatch.setattr("parley.secure.channel.position", lambda context: (1, 0))
    else:
        monkeypatch.setattr(Ledger, "_recorded", lambda *_: None)
    with pytest.raises(AssertionError):
        check_one_unmask_only(server)


def test_a_node_masks_once(server: Server):
    """Two replies under the same masks would show their difference."""
    server.up_to_masked()
    changed = server.message.replace(model={n: v + 1 for n, v in server.message["model"].items()})
    head, _ = server.ask("b", "client", changed)
    assert "it was asked this before, with another message" in head["reason"]


def test_a_node_wants_its_own_ticket(server: Server):
    asking = server.up_to_masked()
    factors = torch.tensor([1.0, 0.5, 0.5, 0.5], dtype=torch.float64)
    weighed = asking["c"].replace(**{GROUP: asking["c"][GROUP] | {"factors": factors}})
    head, _ = server.ask("c", UNMASK, weighed)
    assert "not those that it began with" in head["reason"]


@pytest.mark.parametrize("part", ["keys", "factors", "there", "summed", "ticket", "boxes"])
def test_malformed_questions_are_refused_in_a_sentence(server: Server, part: str):
    asking = server.up_to_masked()["d"]
    tree = asking[GROUP]
    for wrong in (None, torch.zeros(0), torch.zeros(3, dtype=torch.uint8), torch.zeros(4, 5, dtype=torch.float64)):
        bad = {n: v for n, v in tree.items() if n != part} | ({} if wrong is None else {part: wrong})
        head, _ = server.ask("d", UNMASK, asking.replace(**{GROUP: bad}))
        assert head["kind"] == "failure"
        assert not head["trace"], head["trace"]

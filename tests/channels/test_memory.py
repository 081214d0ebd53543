"""What channels remember: residuals and mirrors, by function and tensor, only of replies that were accepted."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from parley.algorithms.exchange import Exchange, Reply
from parley.channels.base import Channels
from parley.channels.ef21 import ef21
from parley.channels.quantise import qsgd
from parley.channels.sign import sign
from parley.channels.top_k import top_k
from parley.core.context import Context
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message
from tests.channels.conftest import Line, message, vector

UP = [top_k(0.2), sign(), top_k(0.3) | qsgd(4)]


@pytest.mark.parametrize("up", UP, ids=str)
def test_all_that_was_sent_plus_the_residual_is_all_there_was(up):
    line, total, arrived = Line.of(up), torch.zeros(20, dtype=torch.float64), torch.zeros(20, dtype=torch.float64)
    for number in range(6):
        x = torch.randn(20, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        total += x
        arrived += vector(line.carry(message(x), number)[1])
        residual = torch.cat([value.reshape(-1) for value in line.client["channel-0-client"].values()])
        assert torch.allclose(arrived + residual, total, atol=1e-12)


@pytest.mark.parametrize(
    "compressor", [top_k(0.2), sign(), top_k(0.2, False), top_k(0.4, False) | sign(False)], ids=str
)
def test_ef21_keeps_the_same_at_both_ends_and_settles(compressor):
    line, x = Line.of(ef21() | compressor), torch.randn(20, generator=torch.Generator().manual_seed(0))
    errors = []
    for number in range(60):
        _, arrived = line.carry(message(x), number)
        errors.append(float((vector(arrived) - x).norm()))
        ours, theirs = line.client["channel-0-client"], line.server["channel-0-client"]
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert line.client.groups() == ["channel-0-client"]
    assert errors[-1] < 1e-4 * errors[0]
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in pairwise(errors))


def test_parts_that_do_not_travel_keep_their_residual():
    a, b = torch.tensor([4.0, 1.0]), torch.tensor([3.0, 0.5])
    line = Line.of(top_k(0.5))
    line.carry(Message.of(update={"a": a, "b": b}))
    line.carry(Message.of(update={"a": torch.zeros(2)}))
    kept = line.client["channel-0-client"]
    assert torch.equal(kept["update/b"], torch.tensor([0.0, 0.5]))
    assert torch.equal(kept["update/a"], torch.tensor([0.0, 0.0]))


def test_a_method_that_makes_its_memory_anew_does_not_end_what_channels_remember():
    channels = Channels.of(_Method(), ef21() | top_k(0.5))
    memory = Memory()
    for asked in ("client", "losses"):
        context = Context("a", 1, asked, 0, Key(0), Context.alone(Key(0)).secrets)
        reply = channels.send(Reply(Message.of(update={"w": torch.ones(4)}), Memory.of(own=asked)), memory, context)
        memory = reply.memory
    assert memory.scalars == {"own": "losses"}
    assert set(memory.groups()) == {"channel-0-client", "channel-0-losses"}
    quiet = channels.send(Reply(Message.of(other={"w": torch.ones(4)}), Memory.of(own="x")), memory, context)
    assert set(quiet.memory.groups()) == {"channel-0-client", "channel-0-losses"}


def test_without_anything_to_remember_memories_stay_as_they_were():
    reply = Reply(message(torch.ones(8)))
    sent = Channels.of(_Method(), qsgd(4)).send(reply, Memory.of(c=1), Context.alone(Key(0)))
    assert sent.memory is None
    arrival = Channels.of(_Method(), qsgd(4)).receive(
        sent.message, Form.like(reply.message.tensors), Context.alone(Key(0))
    )
    assert arrival.mirror is None


class _Method:
    def exchanges(self):
        return [Exchange(name, None, None, None, compress=("update",)) for name in ("client", "losses")]

    title = "Method"

"""One message through both halves of channels, as it happens to a client's reply."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from parley.algorithms.exchange import Reply
from parley.channels.base import Chain, Channel, Channels
from parley.core.context import Context
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message


@dataclass
class Line:
    """A client and its server, with what each of them keeps."""

    channels: Channels
    client: Memory
    server: Memory | None = None

    @classmethod
    def of(cls, up: Channel | Chain, trees: tuple[str, ...] = ("update",), rows: tuple[str, ...] = ()) -> Line:
        chain = up if isinstance(up, Chain) else Chain((up,))
        return cls(Channels(chain, {"client": trees}, {"client": rows}), Memory())

    def carry(self, message: Message, seed: int = 0) -> tuple[Message, Message]:
        """What is transmitted and what arrives."""
        context, form = Context.alone(Key(seed)), Form.like(message.tensors)
        reply = self.channels.send(Reply(message), self.client, context)
        arrival = self.channels.receive(reply.message, form, context, self.server)
        self.client, self.server = reply.memory or self.client, arrival.mirror
        return reply.message, arrival.message


def message(vector: Tensor) -> Message:
    """A vector as a matrix and the rest of it, beside something that channels do not touch."""
    rows = len(vector) // 4
    return Message.of(
        update={"a": vector[: 2 * rows].view(2, rows), "b": vector[2 * rows :]}, buffers={"n": torch.tensor([3])}, k=2
    )


def vector(of: Message) -> Tensor:
    return torch.cat([value.reshape(-1) for value in of["update"].values()])


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

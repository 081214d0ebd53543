"""What a client sends means the same at the server, in whatever order either names the tensors."""

import torch

from parley.algorithms.base.protocol import Reply
from parley.channels.base import Chain, Channels
from parley.channels.top_k import TopK
from parley.core.context import Context, Secrets
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message
from parley.core.wire import decode, encode

TREE = {"weight": torch.arange(6.0).view(2, 3) + 1, "bias": torch.tensor([-9.0, 0.5])}


def test_payloads_are_in_the_order_of_names():
    for tree in (TREE, dict(reversed(TREE.items()))):
        message = Message.of(z=torch.ones(1), model=tree, a=torch.ones(1))
        assert list(message.tensors) == ["a", "model/bias", "model/weight", "z"]
        assert list(decode(encode(message)).tensors) == list(message.tensors)
        assert list(message.replace(b=tree).tensors) == ["a", "b/bias", "b/weight", "model/bias", "model/weight", "z"]


def test_places_of_top_k_do_not_depend_on_the_order_of_the_form():
    channels = Channels(Chain((TopK(0.5),)), ("update",))
    context = Context("a", 1, "client", 0, Key(0), Secrets(bytes(16)))
    sent = channels.send(Reply(Message.of(update=TREE)), Memory(), context)
    for tree in (TREE, dict(reversed(TREE.items()))):
        received = channels.receive(decode(encode(sent.message)), Form.of(update=Form.like(tree)), context).message[
            "update"
        ]
        assert torch.equal(received["weight"], torch.tensor([[0.0, 0.0, 0.0], [4.0, 5.0, 6.0]]))
        assert torch.equal(received["bias"], torch.tensor([-9.0, 0.0]))

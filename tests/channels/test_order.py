"""What a client sends means the same at the server, in whatever order either names the tensors."""

import torch

from parley.algorithms.exchange import Reply
from parley.channels.base import Chain, Channels
from parley.channels.top_k import TopK
from parley.core.context import Context, Secrets
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message
from parley.core.wire import decode, encode, wire_size

TREE = {"weight": torch.arange(6.0).view(2, 3) + 1, "bias": torch.tensor([-9.0, 0.5])}


def test_tensors_keep_their_order_on_the_way():
    for tree in (TREE, dict(reversed(TREE.items()))):
        message = Message.of(z=torch.ones(1), model=tree, a=torch.ones(1, dtype=torch.float64), ä=torch.ones(2))
        again = decode(encode(message))
        assert list(again.tensors) == list(message.tensors)
        assert all(torch.equal(again.tensors[name], value) for name, value in message.tensors.items())
        assert len(encode(message)) == wire_size(message)


def test_places_of_top_k_do_not_depend_on_the_order_of_the_form():
    channels = Channels(Chain((TopK(0.5),)), {"client": ("update",)})
    context = Context("a", 1, "client", 0, Key(0), Secrets(bytes(16)))
    sent = channels.send(Reply(Message.of(update=TREE)), Memory(), context)
    for tree in (TREE, dict(reversed(TREE.items()))):
        form = Form.of(update=Form.like(tree))
        received = channels.receive(decode(encode(sent.message)), form, context).message["update"]
        assert torch.equal(received["weight"], torch.tensor([[0.0, 0.0, 0.0], [4.0, 5.0, 6.0]]))
        assert torch.equal(received["bias"], torch.tensor([-9.0, 0.0]))

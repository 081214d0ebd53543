"""Channels: what happens to a message between a client and the server.

A channel has two halves. `send` runs where the client runs, after the method's own function and before bytes are
counted. `receive` runs on the server, before the form of the reply is checked, and gives the method what it would have
had. With error feedback a client adds to its next message what the server did not receive of the last one:

    p = message + e;   send C(p);   e <- p - what the server makes of it, later channels included

e stays in a reserved part of the client's memory and, like it, advances only if the reply was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from parley.core.context import Context
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.message import Memory, Message
from parley.core.registry import Registry
from parley.core.tree import Tree

channels: Registry[type[Channel]] = Registry("channel")
channel = channels

RESERVED = "channel-"
"""Groups of a client's memory that begin so are the channels'."""


@dataclass(frozen=True)
class Channel:
    """One thing that happens to a message; frozen settings with a docstring under each, like an algorithm's."""

    unbiased: ClassVar[bool] = False
    """What is received is, in expectation, what was sent."""

    @property
    def feedback(self) -> bool:
        """What the server did not receive is added to the client's next message."""
        return False

    @property
    def sensitivity(self) -> float | None:
        """The largest norm of all that a client sends, where the channel bounds it."""
        return None

    def send(self, message: Message, context: Context, trees: Sequence[str]) -> Message:
        """What is transmitted; `trees`: the names of those that may be compressed."""
        raise NotImplementedError

    def receive(self, message: Message, form: Form) -> Message:
        """The message as it was before `send`, or what is left of it; `form`: its form then."""
        return message

    def transmitted(self, form: Form, trees: Sequence[str]) -> Form:
        """The form of what `send` makes of a message of this form."""
        return form

    def __or__(self, other: Channel | Chain) -> Chain:
        return Chain((self,)) | other


@dataclass(frozen=True)
class Chain:
    """Channels one after the other: `top_k(0.01) | clip(1.0)`."""

    stages: tuple[Channel, ...] = ()

    def __or__(self, other: Channel | Chain) -> Chain:
        return Chain((*self.stages, *(other.stages if isinstance(other, Chain) else (other,))))

    def __bool__(self) -> bool:
        return bool(self.stages)


@dataclass(frozen=True)
class Channels:
    """The channels of a run, on the way up to the server."""

    up: Chain = Chain()
    trees: tuple[str, ...] = ()
    """The trees of a reply that may be compressed, as the method says."""

    @classmethod
    def of(cls, algorithm: Any, up: Channel | Chain | Sequence[Channel]) -> Channels:
        """For a method; refuses one that declares nothing to compress."""
        chain = up if isinstance(up, Chain) else Chain((up,) if isinstance(up, Channel) else tuple(up))
        if chain and not algorithm.compressible:
            raise InputError(f"{algorithm.title} does not say what of its replies channels may touch (compressible).")
        return cls(chain, tuple(algorithm.compressible))

    def send(self, reply: Any, memory: Memory, context: Context) -> Any:
        """The reply as it is transmitted, with what the channels remember in its memory."""
        inputs: list[Message] = []
        message = reply.message
        for number, stage in enumerate(self.up.stages):
            if stage.feedback:
                message = _sum(message, memory.get(f"{RESERVED}{number}"))
            inputs.append(message)
            message = stage.send(message, context, self.trees)
        kept = reply.memory if reply.memory is not None else memory
        arrived = message
        for number in reversed(range(len(inputs))):
            arrived = self.up.stages[number].receive(arrived, Form.like(inputs[number].tensors))
            if self.up.stages[number].feedback:
                kept = kept.replace(**{f"{RESERVED}{number}": self._missing(inputs[number], arrived)})
        return type(reply)(message, reply.memory if kept is memory else kept, reply.observed)

    def receive(self, message: Message, form: Form) -> Message:
        """What the server's half makes of a message; raises a WireError if it cannot be what was transmitted."""
        forms = [form]
        for stage in self.up.stages:
            forms.append(stage.transmitted(forms[-1], self.trees))
        forms.pop().check(message.tensors)
        for stage, before in zip(reversed(self.up.stages), reversed(forms), strict=True):
            message = stage.receive(message, before)
        return message

    def _missing(self, meant: Message, arrived: Message) -> Tree:
        """What of the compressible trees did not arrive."""
        names = compressible(meant, self.trees)
        return {name: meant.tensors[name] - arrived.tensors[name] for name in names}


def compressible(message: Message | Form, trees: Sequence[str]) -> list[str]:
    """The names of the tensors in these trees, in an order that both ends know."""
    names = message if isinstance(message, Form) else message.tensors
    return sorted(name for name in names if name.split("/", 1)[0] in trees)


def _sum(message: Message, residual: Tree) -> Message:
    tensors = {n: v + residual[n] if n in residual else v for n, v in message.tensors.items()}
    return Message(tensors, message.scalars)

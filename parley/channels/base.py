"""Channels: what happens to a message between a client and the server.

A channel has two halves. `send` runs where the client runs, after the method's own function and before bytes are
counted. `receive` runs on the server, before the form of the reply is checked, and gives the method what it would have
had. Some remember something of the last message, in a reserved part of the client's memory that, like all of it,
advances only if the reply was accepted:

    error feedback   p = message + e;   send C(p);       e <- p - arrived
    mirrored         send C(message - g);                g <- g + arrived, at the client and at the server alike

where `arrived` is what the server makes of C(...), later channels included. A channel that both keeps a mirror and is
followed by others takes the place of their error feedback.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

from parley.core.context import Context
from parley.core.errors import InputError, WireError
from parley.core.form import Form, Number
from parley.core.key import Key
from parley.core.message import Memory, Message
from parley.core.registry import Registry
from parley.core.tree import Tree, is_finite

channels: Registry[type[Channel]] = Registry("channel")
channel = channels

RESERVED = "channel-"
"""Groups of a client's memory that begin so are the channels'."""
MIRROR = "channel:"
"""Before a client's id: the name under which the server keeps its copy of what mirrored channels remember."""


@dataclass(frozen=True)
class Channel:
    """One thing that happens to a message; frozen settings with a docstring under each, like an algorithm's."""

    touches: ClassVar[Literal["compress", "reorder", "everything"]] = "compress"
    """Which trees of a reply it works on: those that the exchange declares so."""
    mirrored: ClassVar[bool] = False
    """Only the change since the last message is sent; the server keeps a copy of what it is added to."""
    passes: ClassVar[tuple[str, ...]] = ()
    """Tensors it makes of the trees that later channels may compress in their place."""
    isometric: ClassVar[bool] = False
    """What the server makes of it is no longer than what was transmitted, so that a bound set by a later channel holds
    for both."""
    summable: ClassVar[bool] = False
    """Its server's half has nothing to undo, so that the sum of what is transmitted is that of what arrives."""
    server_scalars: ClassVar[tuple[str, ...]] = ()
    """Scalars of the server's message that are for it and not for the method, numbers above 0."""
    last: ClassVar[bool] = False
    """It closes what the others made, so it comes after all of them wherever it is named."""

    @property
    def nonexpansive(self) -> bool:
        """What arrives is never longer than what was given, so that a bound set by an earlier channel holds."""
        return False

    @property
    def unbiased(self) -> bool:
        """What is received is, in expectation, what was sent."""
        return False

    @property
    def feedback(self) -> bool:
        """What the server did not receive is added to the client's next message."""
        return False

    @property
    def sensitivity(self) -> float | None:
        """The largest norm of all that a client sends, where the channel bounds it."""
        return None

    def variance(self, entries: int) -> float | None:
        """Of an unbiased one: omega with E ||C(x) - x||^2 <= omega ||x||^2 for vectors of so many entries."""
        return None

    def contraction(self, entries: int) -> float | None:
        """delta with ||C(x) - x||^2 <= (1 - delta) ||x||^2 always (of a random one: in expectation); None: no bound."""
        return None

    def send(self, message: Message, context: Context, trees: Sequence[str]) -> Message:
        """What is transmitted; `trees`: the names of those that it may work on, and of tensors of earlier channels."""
        raise NotImplementedError

    def receive(self, message: Message, form: Form, trees: Sequence[str], key: Key) -> Message:
        """The message as it was before `send`, or what is left of it.

        `form`: its form then; `key`: the client's `context.key`. Raises a WireError for what `send` never makes.
        """
        return message

    def transmitted(self, form: Form, trees: Sequence[str]) -> Form:
        """The form of what `send` makes of a message of this form."""
        return form

    def configured(self, received: Message) -> Channel:
        """The channel as the server's message sets it for this reply."""
        return self

    def answers(self, asked: str) -> Callable[[Message, Context], Message] | None:
        """What a client answers to a question of the channel's own; None if it is none of them."""
        return None

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

    @property
    def unbiased(self) -> bool:
        """All of its channels are."""
        return all(stage.unbiased for stage in self.stages)

    @property
    def sensitivity(self) -> float | None:
        """The bound on the norm of what the server makes of a reply: the last one that no later channel can exceed."""
        bound = None
        for stage in self.stages:
            if stage.sensitivity is not None:
                bound = stage.sensitivity
            elif not stage.nonexpansive:
                bound = None
        return bound

    def check(self) -> None:
        """Refuse what makes no sense in this order."""
        kinds = [type(stage) for stage in self.stages]
        for number, stage in enumerate(self.stages):
            before = self.stages[:number]
            if stage.passes and kinds.index(kinds[number]) < number:
                raise InputError(f"the channel {title(stage)} comes twice; once is enough.")
            loose = next((other for other in before if not other.isometric), None)
            if stage.sensitivity is not None and loose is not None:
                raise InputError(
                    f"{title(stage)} after {title(loose)} would bound what is transmitted, but not what the server "
                    f"makes of it; put {title(stage)} first."
                )
            unsummed = next((other for other in before if not other.summable), None)
            if stage.last and unsummed is not None:
                raise InputError(
                    f"{title(stage)} cannot follow {title(unsummed)}, whose messages mean something only one by one: "
                    f"their sum is not what the sum of the replies becomes; leave out {title(unsummed)}."
                )


class Arrival(NamedTuple):
    """What the server has of a message."""

    message: Message
    mirror: Memory | None
    """What it keeps of it for the client's next one; None if its channels keep nothing."""


@dataclass(frozen=True)
class Channels:
    """The channels of a run, on the way up to the server."""

    up: Chain = Chain()
    trees: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Exchange -> the trees of a reply that may be compressed."""
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Exchange -> the trees of a reply whose rows may change places."""

    @classmethod
    def of(cls, method: Any, up: Channel | Chain | Sequence[Channel]) -> Channels:
        """For a method; refuses one whose exchanges declare nothing for a channel to work on."""
        exchanges = method.exchanges()
        trees = {each.name: each.compress for each in exchanges if each.compress}
        rows = {each.name: each.reorder for each in exchanges if each.reorder}
        given = up.stages if isinstance(up, Chain) else (up,) if isinstance(up, Channel) else tuple(up)
        chain = Chain(tuple(sorted(given, key=lambda stage: stage.last)))
        chain.check()
        for stage in chain.stages:
            where = f"{method.title} cannot be run with the channel {title(stage)}"
            if stage.touches != "everything" and not (trees if stage.touches == "compress" else rows):
                raise InputError(f"{where}: {_LACKS[stage.touches]}")
            if (stage.feedback or stage.mirrored) and any(each.compress and not each.feedback for each in exchanges):
                raise InputError(
                    f"{where}: its replies differ in what they stand for, so what was not sent of one cannot be added "
                    "to the next (error feedback)."
                )
        return cls(chain, trees, rows)

    @property
    def mirrored(self) -> bool:
        """The server keeps something of every client."""
        return any(stage.mirrored for stage in self.up.stages)

    @property
    def closing(self) -> Channel | None:
        """The channel that closes replies, so that single ones cannot be read."""
        return self.up.stages[-1] if self.up and self.up.stages[-1].last else None

    @property
    def unclosed(self) -> Channels:
        """The same without it."""
        return self if self.closing is None else replace(self, up=Chain(self.up.stages[:-1]))

    def configured(self, received: Message) -> Channels:
        """The channels as the server's message sets them; what it says to the closing one is for that one alone."""
        question = received if self.closing is None else received.replace(**{title(self.closing): {}})
        stages = tuple(stage.configured(received if stage.last else question) for stage in self.up.stages)
        same = all(now is before for now, before in zip(stages, self.up.stages, strict=True))
        return self if same else replace(self, up=Chain(stages))

    def answers(self, asked: str) -> Callable[[Message, Context], Message] | None:
        """What a client answers to a question of a channel's own."""
        return next((answer for stage in self.up.stages if (answer := stage.answers(asked)) is not None), None)

    def form(self, form: Form, asked: str) -> Form:
        """The form of what is transmitted of a reply of this form."""
        for _, stage, trees in self._stages(asked):
            form = stage.transmitted(form, trees)
        return form

    def bare(self, received: Message) -> Message:
        """The server's message without what it says to channels; a WireError where that cannot be."""
        names = [name for stage in self.up.stages for name in stage.server_scalars if name in received.scalars]
        for name in names:
            Number(float, math.ulp(0.0)).check(name, received.scalars[name])
        if names:
            kept = {name: value for name, value in received.scalars.items() if name not in names}
            received = Message(received.tensors, kept)
        if self.closing is None:
            return received
        return received.replace(**{title(self.closing): {}})

    def send(self, reply: Any, memory: Memory, context: Context) -> Any:
        """The reply as it is transmitted, with what the channels remember in its memory."""
        client_memory: Memory = reply.memory if reply.memory is not None else memory
        kept = _with_reserved(client_memory, memory)
        inputs: list[Message] = []
        message = reply.message
        for number, stage, trees in self._stages(context.asked):
            remembered = memory.get(_group(number, context.asked))
            if self._remembers(number):
                message = _added(message, remembered, -1 if stage.mirrored else 1)
            inputs.append(message)
            message = stage.send(message, context.below("channel", number), trees)
        arrived, first = message, self._first_that_remembers
        for number, stage, trees in reversed(list(self._stages(context.asked))):
            if number < first:
                break
            meant = inputs[number]
            arrived = stage.receive(arrived, Form.like(meant.tensors), trees, context.below("channel", number).key)
            if self._remembers(number):
                group, names = _group(number, context.asked), compressible(meant, trees)
                before = memory.get(group)
                if stage.mirrored:
                    arrived = _added(arrived, before)
                    now = {name: arrived.tensors[name] for name in names}
                else:
                    now = {name: meant.tensors[name] - arrived.tensors[name] for name in names}
                kept = kept.replace(**{group: before | now})  # what did not travel this time stays
        return type(reply)(message, reply.memory if kept is memory else kept, reply.observed)

    def receive(self, message: Message, form: Form, context: Context, mirror: Memory | None = None) -> Arrival:
        """What the server's half makes of a message; raises a WireError if it cannot be what was transmitted.

        `mirror`: what the server kept of the client's last accepted message.
        """
        stages, forms = list(self._stages(context.asked)), [form]
        for _, stage, trees in stages:
            forms.append(stage.transmitted(forms[-1], trees))
        forms.pop().check(message.tensors)
        if not is_finite(message.tensors):
            raise WireError("it has NaN or infinite numbers.")
        kept = mirror or Memory()
        for (number, stage, trees), before in zip(reversed(stages), reversed(forms), strict=True):
            message = stage.receive(message, before, trees, context.below("channel", number).key)
            if stage.mirrored:
                group, names = _group(number, context.asked), compressible(before, trees)
                last = kept.get(group)
                message = _added(message, last)
                kept = kept.replace(**{group: last | {name: message.tensors[name] for name in names}})
        if not is_finite(message.tensors):
            raise WireError("it means NaN or infinite numbers.")
        return Arrival(message, kept if self.mirrored else None)

    def _stages(self, asked: str) -> Iterator[tuple[int, Channel, tuple[str, ...]]]:
        """Every stage with its number and what it may work on in this exchange's replies."""
        trees, rows = self.trees.get(asked, ()), self.rows.get(asked, ())
        for number, stage in enumerate(self.up.stages):
            yield number, stage, trees if stage.touches == "compress" else rows
            trees += stage.passes

    def _remembers(self, number: int) -> bool:
        stages = self.up.stages
        led = any(stage.mirrored for stage in stages[:number])
        return stages[number].mirrored or (stages[number].feedback and not led)

    @property
    def _first_that_remembers(self) -> int:
        stages = range(len(self.up.stages))
        return next((number for number in stages if self._remembers(number)), len(stages))


def compressible(message: Message | Form, trees: Sequence[str]) -> list[str]:
    """The names of the tensors in these trees, and of those that are named themselves, in order."""
    names = message if isinstance(message, Form) else message.tensors
    return sorted(name for name in names if name in trees or name.split("/", 1)[0] in trees)


def title(stage: Channel) -> str:
    """What a channel is called in sentences and in the names of what it sends."""
    kind = type(stage)
    return channels.name_of(kind) if channels.knows(kind) else kind.__name__.lower()


_LACKS = {
    "compress": "it does not say what of its replies channels may touch (compress).",
    "reorder": "the rows of its replies have an order (reorder names those that have none).",
}


def _group(number: int, asked: str) -> str:
    """Where a stage keeps what it remembers of the answers of one function."""
    return f"{RESERVED}{number}-{asked}"


def _with_reserved(kept: Memory, before: Memory) -> Memory:
    """What a method keeps, and what the channels kept before: a method that makes its memory anew must not end that."""
    if kept is before:
        return kept
    held = {name: value for name, value in before.tensors.items() if name.startswith(RESERVED)}
    return Memory(kept.tensors | held, kept.scalars) if held else kept


def _added(message: Message, tree: Tree, scale: int = 1) -> Message:
    tensors = {n: v.add(tree[n], alpha=scale) if n in tree else v for n, v in message.tensors.items()}
    return Message(tensors, message.scalars)

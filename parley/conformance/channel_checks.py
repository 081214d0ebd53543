"""A channel, ours or anybody's, held against what it promises: sizes, unbiasedness, contraction, sensitivity.

    check_channel(MyChannel(0.1))              # or: parley conformance --channel my_channel.py:MyChannel

Each statement is checked on vectors of several kinds: dense, sparse, constant, with one large entry, and zero. A
channel that promises nothing but its size is checked for its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from parley.algorithms.exchange import Reply
from parley.channels.base import Chain, Channel, Channels, title
from parley.conformance.check import Check, at_most
from parley.core.context import Context
from parley.core.errors import InputError, ParleyError, WireError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message
from parley.core.plugins import from_file, is_file_name
from parley.core.wire import decode, encode
from parley.study.channel_names import named_channel

_ENTRIES = 24
_DRAWS = 400
_DEVIATIONS = 5.5
"""Standard errors that the mean of so many draws may be off, in any of the entries."""


def check_channel(channel: Channel, name: str | None = None) -> list[Check]:
    """All that a channel says of itself, statement by statement."""
    label = name or title(channel)
    if channel.last:
        raise InputError(f"{label} hides single replies, so single replies cannot be checked; see its page.")
    return [at_most(f"{label}: {what}", off, allowed) for what, off, allowed in _statements(channel)]


def load_channel(text: str) -> Channel:
    """The channel that `file.py:Name` or `file.py:Name(0.1)` means, or one of ours such as `qsgd(4)`."""
    name, bracket, inside = text.partition("(")
    if not is_file_name(name.strip()):
        return named_channel(text)
    channel = from_file(name.strip())
    if isinstance(channel, Channel):
        return channel
    if not (isinstance(channel, type) and issubclass(channel, Channel)):
        raise InputError(f"'{name}' is no channel: derive it from parley.Channel.")
    try:
        made: Channel = named_channel(f"{name.strip()}({inside}" if bracket else name.strip())
    except TypeError as error:
        raise InputError(f"'{text}' cannot be made: {error}.") from None
    return made


def _statements(channel: Channel) -> Iterator[tuple[str, float, float]]:
    vectors = _vectors()
    sent = [_carried(channel, vector) for vector in vectors.values()]
    yield "its replies have the form it states", sum(trip.misstated for trip in sent), 0
    yield "what arrives has the form of what was sent", sum(trip.misshapen for trip in sent), 0
    yield "the same key gives the same bytes", sum(not trip.repeatable for trip in sent), 0
    yield "it touches nothing else", sum(not trip.rest_as_it_was for trip in sent), 0
    yield "what it never sends is refused, not crashed on", sum(trip.crashed for trip in sent), 0
    alone = not (channel.feedback or channel.mirrored)
    for kind, vector in vectors.items():
        if kind == "zero":
            continue
        size, entries = float(vector.square().sum()), len(vector)
        draws = torch.stack([_carried(channel, vector, seed, once=True).vector for seed in range(_DRAWS)])
        lost = (draws - vector).square().sum(1) / size
        if channel.unbiased:
            error = draws.std(0) / _DRAWS**0.5 + 1e-9 * vector.abs().max()
            yield (
                f"unbiased, {kind} (standard errors)",
                float(((draws.mean(0) - vector).abs() / error).max()),
                _DEVIATIONS,
            )
        omega, delta = channel.variance(entries), channel.contraction(entries)
        if omega is not None:
            noise = 4 * float(lost.std()) / _DRAWS**0.5
            yield f"variance / omega, {kind}", (float(lost.mean()) - noise) / max(omega, 1e-12), 1 + 1e-6
        if delta is not None:
            noise = 4 * float(lost.std()) / _DRAWS**0.5
            yield f"what is lost beyond 1 - delta, {kind}", float(lost.mean()) - noise - (1 - delta), 1e-9
        if channel.nonexpansive and alone:
            yield f"no longer than it was, {kind}", float(draws.norm(dim=1).max() / size**0.5), 1 + 1e-6
        if channel.sensitivity is not None:
            yield f"norm / sensitivity, {kind}", float(draws.norm(dim=1).max() / channel.sensitivity), 1 + 1e-6


class _Trip:
    """One message through both halves of a channel."""

    def __init__(self, channel: Channel, vector: Tensor, seed: int, once: bool) -> None:
        wide = {"a": vector[: len(vector) // 2].view(2, -1), "b": vector[len(vector) // 2 :]}
        rows = channel.touches == "reorder"
        message = Message.of(update=wide, label="k")
        names = {"client": ("update",)}
        channels = Channels(Chain((channel,)), {} if rows else names, names if rows else {})
        context, form = Context.alone(Key(seed)), Form.like(message.tensors)
        transmitted = channels.send(Reply(message), Memory(), context).message
        arrived = channels.receive(decode(encode(transmitted)), form, context, None).message
        self.vector = torch.cat([arrived.tensors[name].reshape(-1) for name in ("update/a", "update/b")])
        if once:
            return
        stated = channel.transmitted(form, ("update",))
        self.misstated = sum(
            1
            for name in stated.keys() | transmitted.tensors.keys()
            if stated.get(name) != Form.like(transmitted.tensors).get(name)
        )
        self.misshapen = int(Form.like(arrived.tensors) != form)
        again = channels.send(Reply(message), Memory(), context).message
        self.repeatable = encode(again) == encode(transmitted)
        self.rest_as_it_was = transmitted.scalars == arrived.scalars == message.scalars
        self.crashed = sum(_crashes(channels, bad, form, context) for bad in _spoilt(transmitted))


def _carried(channel: Channel, vector: Tensor, seed: int = 0, once: bool = False) -> Any:
    try:
        return _Trip(channel, vector, seed, once)
    except ParleyError as error:
        raise InputError(f"the channel {title(channel)} cannot take a message: {error}") from error


def _spoilt(message: Message) -> Iterator[Message]:
    """The message with one of its tensors missing, too long, of another dtype or full of the largest numbers."""
    for name, value in message.tensors.items():
        rest = {other: kept for other, kept in message.tensors.items() if other != name}
        full = torch.finfo(value.dtype).max if value.is_floating_point() else torch.iinfo(value.dtype).max
        for bad in (
            None,
            torch.cat([value.reshape(-1)] * 2),
            value.double().to(torch.int64),
            torch.full_like(value, full),
        ):
            yield Message(rest if bad is None else rest | {name: bad}, message.scalars)


def _crashes(channels: Channels, message: Message, form: Form, context: Context) -> bool:
    try:
        channels.receive(message, form, context, None)
    except WireError:
        return False
    except Exception:
        return True
    return False


def _vectors() -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(0)
    dense = torch.randn(_ENTRIES, generator=rng, dtype=torch.float64)
    large = dense.clone()
    large[3] = 100.0
    kinds = {
        "dense": dense,
        "sparse": dense * (dense.abs() > 1),
        "constant": torch.full_like(dense, 0.5),
        "large": large,
    }
    return kinds | {"zero": torch.zeros_like(dense)}

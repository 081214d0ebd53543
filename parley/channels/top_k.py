"""Top-k sparsification (Aji and Heafield, 2017) with error feedback (Stich et al., 2018).

The k entries of largest size among all compressible trees together are sent as their values and positions (int32):
8 bytes an entry in float32. What is left out is added to the client's next message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from parley.channels.base import Channel, channel, compressible
from parley.core.context import Context
from parley.core.errors import InputError, WireError
from parley.core.form import Form
from parley.core.message import Message

VALUES, PLACES = "top-k/values", "top-k/places"


@channel("top-k")
@dataclass(frozen=True)
class TopK(Channel):
    """Sends the largest entries only; by default clients make up for the rest later (error feedback)."""

    share: float
    """Entries sent, as a share of all compressible ones, in (0, 1]."""
    error_feedback: bool = True
    """Add what was not sent to the client's next message."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"top-k sends a share of the entries between 0 and 1, not {self.share}.")

    @property
    def feedback(self) -> bool:
        return self.error_feedback

    def send(self, message: Message, context: Context, trees: Sequence[str]) -> Message:
        names = compressible(message, trees)
        if not names:
            return message
        flat = torch.cat([message.tensors[name].reshape(-1) for name in names])
        places = flat.abs().topk(self._count(len(flat)), sorted=False).indices.sort().values
        rest = {name: value for name, value in message.tensors.items() if name not in names}
        return Message(rest | {VALUES: flat[places], PLACES: places.to(torch.int32)}, message.scalars)

    def receive(self, message: Message, form: Form) -> Message:
        values, places = message.tensors.get(VALUES), message.tensors.get(PLACES)
        if values is None or places is None:
            return message
        names = sorted(name for name in form if name not in message.tensors)  # the order in which they were sent
        shapes = [_shape(form, name) for name in names]
        sizes = [math.prod(shape) for shape in shapes]
        if len(places) and not (int(places.min()) >= 0 and int(places.max()) < sum(sizes)):
            raise WireError("it names places beyond the model.")
        flat = torch.zeros(sum(sizes), dtype=values.dtype)
        flat[places.long()] = values
        dense = {n: part.view(shape) for n, part, shape in zip(names, flat.split(sizes), shapes, strict=True)}
        sent = dense | {name: value for name, value in message.tensors.items() if name not in (VALUES, PLACES)}
        return Message({name: sent[name] for name in form}, message.scalars)

    def transmitted(self, form: Form, trees: Sequence[str]) -> Form:
        names = compressible(form, trees)
        if not names:
            return form
        dtypes = {spec[0] for spec in (form[name] for name in names) if spec is not None}
        if len(dtypes) != 1 or None in dtypes:
            raise InputError("top-k needs trees of one dtype, stated in the form of the reply.")
        count = self._count(sum(math.prod(_shape(form, name)) for name in names))
        rest = Form({name: spec for name, spec in form.items() if name not in names})
        return Form(rest | {VALUES: (dtypes.pop(), (count,)), PLACES: (torch.int32, (count,))})

    def _count(self, entries: int) -> int:
        return min(entries, max(1, round(self.share * entries)))


def top_k(share: float, error_feedback: bool = True) -> TopK:
    """`top_k(0.01) | clip(1.0)`: see `TopK`."""
    return TopK(share, error_feedback)


def _shape(form: Form, name: str) -> tuple[int, ...]:
    spec = form[name]
    if spec is None or None in spec[1]:
        raise InputError(f"top-k needs the shape of '{name}', which the form of the reply leaves open.")
    return tuple(side for side in spec[1] if side is not None)

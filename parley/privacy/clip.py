"""Joint clipping: everything a client sends, as one vector, is scaled down to a norm.

Buffers count as well as updates, and so do numbers among the scalars, which are refused because they could not be
scaled: what is not clipped would leak past a bound that noise is calibrated to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from parley.channels.base import Channel, channel, channels
from parley.core.context import Context
from parley.core.errors import InputError
from parley.core.message import Message
from parley.core.tree import norm


@channel("clip")
@dataclass(frozen=True)
class Clip(Channel):
    """Bounds the norm of all that a client sends, so that no client can contribute more than that."""

    isometric: ClassVar[bool] = True
    summable: ClassVar[bool] = True

    bound: float
    """Largest Euclidean norm of a message."""

    def __post_init__(self) -> None:
        if not 0 < self.bound < float("inf"):
            raise InputError(f"the largest norm of a message must be a positive number, not {self.bound}.")

    @property
    def sensitivity(self) -> float:
        return self.bound

    @property
    def nonexpansive(self) -> bool:
        return True

    def send(self, message: Message, context: Context, trees: Sequence[str]) -> Message:
        whole = {name: value for name, value in message.tensors.items() if value.is_floating_point()}
        other = {name for name in message.tensors if name not in whole and not _says_where(name)}
        if other or any(not isinstance(value, str) for value in message.scalars.values()):
            what = sorted(other) or sorted(message.scalars)
            raise InputError(f"clipping is joint over all that is sent, but {what[0]!r} is no tensor of real numbers.")
        if not whole:
            return message
        size = float(norm(whole))
        if size <= self.bound:
            return message
        # Rounding may leave the norm an ulp above the bound; a hair less never does.
        factor = self.bound / size * (1 - 1e-6)
        return Message(message.tensors | {n: v * factor for n, v in whole.items()}, message.scalars)


def clip(bound: float) -> Clip:
    """See `Clip`."""
    return Clip(bound)


def _says_where(name: str) -> bool:
    """Whether it is a channel's list of the places of values, which have no size."""
    group, _, rest = name.partition("/")
    return rest == "places" and group in channels

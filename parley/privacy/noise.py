"""Gaussian noise from secrets, and the channel with which each client adds its own before it sends.

The numbers come from a cryptographic stream (SHAKE-256 of the secret root, the place in the run and the question that
is answered), so neither the study's seed nor any number of them leads to the others. The same question at the same
place gets the same noise, any other one other noise: no difference of two answers is without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

from parley.channels.base import Channel, channel
from parley.core.context import Context
from parley.core.errors import InputError
from parley.core.gaussian import gaussian
from parley.core.message import Message
from parley.core.wire import encode


@channel("noise")
@dataclass(frozen=True)
class Noise(Channel):
    """Gaussian noise that each client adds to all it sends, from secrets of its own; `[privacy]` accounts for it."""

    summable: ClassVar[bool] = True

    deviation: float
    """Standard deviation of the noise on every number."""

    def __post_init__(self) -> None:
        if not 0 < self.deviation < float("inf"):
            raise InputError(f"the standard deviation of noise must be a positive number, not {self.deviation}.")

    @property
    def label(self) -> str:
        """What the noise is drawn for, besides the place."""
        return "noise"

    def configured(self, received: Message) -> Noise:
        return _Noise(self.deviation, _digests[received])

    def send(self, message: Message, context: Context, trees: Sequence[str]) -> Message:
        bare = [name for name, value in message.tensors.items() if not value.is_floating_point()]
        if bare or message.scalars:
            raise InputError(f"noise cannot hide {(bare or sorted(message.scalars))[0]!r}, which is no real numbers.")
        noisy = {
            name: (value.double() + self.deviation * gaussian(context.secrets, f"{self.label} {name}", value.shape)).to(
                value.dtype
            )
            for name, value in message.tensors.items()
        }
        return Message(noisy)


@dataclass(frozen=True)
class _Noise(Noise):
    """For the answer to one question."""

    question: str

    @property
    def label(self) -> str:
        return f"noise {self.question}"


class _Digests:
    """Of questions; the last one is held on to, because clients of a round are mostly asked the same."""

    def __init__(self) -> None:
        self._last: tuple[Message, str] | None = None

    def __getitem__(self, message: Message) -> str:
        last = self._last
        if last is None or last[0] is not message:
            last = self._last = (message, blake2b(encode(message), digest_size=32).hexdigest())
        return last[1]


_digests = _Digests()


def noise(deviation: float) -> Noise:
    """`clip(1.0) | noise(0.5)`: see `Noise`."""
    return Noise(deviation)

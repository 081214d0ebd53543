"""Gaussian noise from secrets, and the channel with which each client adds its own before it sends.

The numbers come from a cryptographic stream (SHAKE-256 of the secret root and the place in the run), so neither the
study's seed nor any number of them leads to the others; the same place gives the same noise, another place other noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from parley.channels.base import Channel, channel
from parley.core.context import Context, Secrets
from parley.core.errors import InputError
from parley.core.message import Message


def gaussian(secrets: Secrets, label: str, shape: Sequence[int]) -> Tensor:
    """Independent standard normal numbers in float64, by Box and Muller."""
    count = math.prod(shape)
    pairs = (count + 1) // 2
    bits = np.frombuffer(secrets.bytes(label, 16 * pairs), dtype="<u8") >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53  # strictly between 0 and 1
    radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(normal).reshape(tuple(shape))


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

    def send(self, message: Message, context: Context, trees: Sequence[str]) -> Message:
        bare = [name for name, value in message.tensors.items() if not value.is_floating_point()]
        if bare or message.scalars:
            raise InputError(f"noise cannot hide {(bare or sorted(message.scalars))[0]!r}, which is no real numbers.")
        noisy = {
            name: (value.double() + self.deviation * gaussian(context.secrets, f"noise {name}", value.shape)).to(
                value.dtype
            )
            for name, value in message.tensors.items()
        }
        return Message(noisy)


def noise(deviation: float) -> Noise:
    """`clip(1.0) | noise(0.5)`: see `Noise`."""
    return Noise(deviation)

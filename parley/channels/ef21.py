"""EF21 (Richtarik, Sokolov and Fatkhullin, 2021): compress how a client's message has changed.

    client   send c_i = C(v_i - g_i);   g_i <- g_i + c_i
    server   g_i <- g_i + c_i, and g_i is what the method is given

The channels after it are C: `ef21() | top_k(0.01)`. As messages settle, so do the g_i, exactly, so that the fixed point
is the one without compression; C must contract (top-k, sign), and takes no error feedback of its own then. The server
keeps a copy of g_i for every client that has answered, in the run's store like clients' memories: as many numbers as
the compressible part of a reply. g_i begins at 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from parley.channels.base import Channel, channel
from parley.core.context import Context
from parley.core.message import Message


@channel("ef21")
@dataclass(frozen=True)
class EF21(Channel):
    """EF21 (Richtarik et al., 2021): the channels after it compress changes, so compression moves no fixed point."""

    mirrored: ClassVar[bool] = True

    def contraction(self, entries: int) -> float:
        return 1.0

    def send(self, message: Message, context: Context, trees: Sequence[str]) -> Message:
        return message


def ef21() -> EF21:
    """`ef21() | top_k(0.01)`: see `EF21`."""
    return EF21()

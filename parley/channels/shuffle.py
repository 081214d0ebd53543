"""Row shuffling: the rows of a reply in a random order that the server cannot undo (Yue et al.'s shuffling).

For replies whose rows are samples, in trees that the exchange declares so (`reorder`). All tensors of such a tree that
have the same number of rows are permuted alike, so what belongs together stays together. The order comes from the
client's secrets: a server that knew it would gain what shuffling takes away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from parley.channels.base import Channel, channel, compressible
from parley.core.context import Context
from parley.core.message import Message


@channel("shuffle")
@dataclass(frozen=True)
class Shuffle(Channel):
    """Puts the rows of what a client sends into a random order of the client's own."""

    touches: ClassVar[Literal["compress", "reorder", "everything"]] = "reorder"
    isometric: ClassVar[bool] = True

    @property
    def nonexpansive(self) -> bool:
        return True

    def send(self, message: Message, context: Context, trees: Sequence[str]) -> Message:
        orders: dict[int, Tensor] = {}
        moved = {}
        for name in compressible(message, trees):
            value = message.tensors[name]
            if value.ndim:
                if len(value) not in orders:
                    drawn = context.secrets.key(f"order of {len(value)} rows").numpy().permutation(len(value))
                    orders[len(value)] = torch.from_numpy(drawn)
                moved[name] = value[orders[len(value)]]
        return Message(message.tensors | moved, message.scalars)


def shuffle() -> Shuffle:
    """See `Shuffle`."""
    return Shuffle()

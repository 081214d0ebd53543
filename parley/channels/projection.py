"""Random projection: a subsampled randomised Hadamard transform (Ailon and Chazelle, 2009), by the round's key.

    send   S H D x,  m numbers        D: random signs;  H: the orthonormal Hadamard transform;  S: m random rows
    make   (p/m) D H S' (what was sent), p the vector's length filled up to a power of two

As random-k in a random basis: unbiased with variance p/m - 1 whatever the vector is, while no entry of it is shown.
Server and client draw D and S from the key that both have, so m numbers travel and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from parley.channels.base import channel
from parley.channels.random_k import drawn_places
from parley.channels.vector import Layout, VectorChannel, check_share, share_of
from parley.core.form import Form
from parley.core.key import Key
from parley.core.tree import Tree


@channel("projection")
@dataclass(frozen=True)
class Projection(VectorChannel):
    """Sends the update's coordinates along random directions, scaled up so that they are right on average."""

    passes: ClassVar[tuple[str, ...]] = ("projection/values",)
    isometric: ClassVar[bool] = True

    share: float
    """Numbers sent, as a share of all compressible entries, in (0, 1]."""
    error_feedback: bool = False
    """Send them as they are and add what was not sent to the client's next message, in place of scaling them up."""

    def __post_init__(self) -> None:
        check_share(self.share, "projection")

    @property
    def unbiased(self) -> bool:
        return not self.error_feedback

    @property
    def feedback(self) -> bool:
        return self.error_feedback

    def variance(self, entries: int) -> float | None:
        return _filled(entries) / share_of(self.share, entries) - 1 if self.unbiased else None

    def contraction(self, entries: int) -> float | None:
        return share_of(self.share, entries) / _filled(entries) if self.error_feedback else None

    def compress(self, vector: Tensor, layout: Layout, key: Key) -> Tree:
        filled, count = _filled(len(vector)), share_of(self.share, len(vector))
        turned = hadamard(torch.nn.functional.pad(vector * _signs(len(vector), key, vector), (0, filled - len(vector))))
        values = turned[drawn_places(filled, count, key)]
        return {"values": values * (filled / count) if self.unbiased else values}

    def restore(self, parts: Tree, layout: Layout, key: Key) -> Tensor:
        filled, values = _filled(layout.entries), parts["values"]
        places = drawn_places(filled, len(values), key)
        turned = torch.zeros(filled, dtype=layout.dtype).index_put_((places,), values)
        return hadamard(turned)[: layout.entries] * _signs(layout.entries, key, values)

    def sizes(self, layout: Layout) -> Form:
        return Form(values=(layout.dtype, (share_of(self.share, layout.entries),)))


def projection(share: float, error_feedback: bool = False) -> Projection:
    """See `Projection`."""
    return Projection(share, error_feedback)


def hadamard(vector: Tensor) -> Tensor:
    """The orthonormal Walsh-Hadamard transform of a vector whose length is a power of two; its own inverse."""
    scale: float = len(vector) ** -0.5
    pairs, half = vector, 1
    while half < len(vector):
        columns = pairs.view(-1, 2, half)
        pairs = torch.stack((columns[:, 0] + columns[:, 1], columns[:, 0] - columns[:, 1]), 1)
        half *= 2
    return pairs.reshape(-1) * scale


def _filled(entries: int) -> int:
    return 1 << (entries - 1).bit_length()


def _signs(entries: int, key: Key, like: Tensor) -> Tensor:
    drawn = key.fold("signs").numpy().integers(0, 2, entries, dtype="int8")
    return torch.from_numpy(drawn).to(like.dtype).mul_(2).sub_(1)

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
from parley.channels.random_k import DrawnEntries
from parley.core.key import Key


@channel("projection")
@dataclass(frozen=True)
class Projection(DrawnEntries):
    """Sends the update's coordinates along random directions, scaled up so that they are right on average."""

    passes: ClassVar[tuple[str, ...]] = ("projection/values",)

    def width(self, entries: int) -> int:
        return 1 << (entries - 1).bit_length()

    def turned(self, vector: Tensor, key: Key) -> Tensor:
        filling = (0, self.width(len(vector)) - len(vector))
        return hadamard(torch.nn.functional.pad(vector * _signs(len(vector), key, vector), filling))

    def turned_back(self, vector: Tensor, entries: int, key: Key) -> Tensor:
        return hadamard(vector)[:entries] * _signs(entries, key, vector)


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


def _signs(entries: int, key: Key, like: Tensor) -> Tensor:
    drawn = key.fold("signs").numpy().integers(0, 2, entries, dtype="int8")
    return torch.from_numpy(drawn).to(like.dtype).mul_(2).sub_(1)

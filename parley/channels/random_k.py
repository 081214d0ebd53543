"""Random-k sparsification (Stich et al., 2018): k entries drawn by the round's key, which the server has too.

So only values travel, 4 bytes an entry in float32. Scaled by d/k they are unbiased, with variance d/k - 1; with error
feedback they are sent as they are, which contracts by k/d in expectation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from parley.channels.base import channel, title
from parley.channels.vector import Layout, VectorChannel, check_share, share_of
from parley.core.form import Form
from parley.core.key import Key
from parley.core.tree import Tree


@dataclass(frozen=True)
class DrawnEntries(VectorChannel):
    """Entries drawn at random, of the vector itself or of it in another basis."""

    isometric: ClassVar[bool] = True

    share: float
    """Numbers sent, as a share of all compressible entries, in (0, 1]."""
    error_feedback: bool = False
    """Send them as they are and add what was not sent to the client's next message, in place of scaling them up."""

    def __post_init__(self) -> None:
        check_share(self.share, title(self))

    @property
    def unbiased(self) -> bool:
        return not self.error_feedback

    @property
    def feedback(self) -> bool:
        return self.error_feedback

    def variance(self, entries: int) -> float | None:
        return self.width(entries) / share_of(self.share, entries) - 1 if self.unbiased else None

    def contraction(self, entries: int) -> float | None:
        return share_of(self.share, entries) / self.width(entries) if self.error_feedback else None

    def width(self, entries: int) -> int:
        """How many there are to draw from."""
        return entries

    def turned(self, vector: Tensor, key: Key) -> Tensor:
        """The vector in the basis whose entries are drawn, [width]."""
        return vector

    def turned_back(self, vector: Tensor, entries: int, key: Key) -> Tensor:
        """The inverse of that, [entries]."""
        return vector

    def compress(self, vector: Tensor, layout: Layout, key: Key) -> Tree:
        width, count = self.width(len(vector)), share_of(self.share, len(vector))
        values = self.turned(vector, key)[_indices(width, count, key)]
        return {"values": values * (width / count) if self.unbiased else values}

    def restore(self, parts: Tree, layout: Layout, key: Key) -> Tensor:
        width, values = self.width(layout.entries), parts["values"]
        drawn = torch.zeros(width, dtype=layout.dtype).index_put_((_indices(width, len(values), key),), values)
        return self.turned_back(drawn, layout.entries, key)

    def sizes(self, layout: Layout) -> Form:
        return Form(values=(layout.dtype, (share_of(self.share, layout.entries),)))


@channel("random-k")
@dataclass(frozen=True)
class RandomK(DrawnEntries):
    """Sends entries drawn at random, scaled up so that they are right on average; their places need not travel."""

    passes: ClassVar[tuple[str, ...]] = ("random-k/values",)


def random_k(share: float, error_feedback: bool = False) -> RandomK:
    """See `RandomK`."""
    return RandomK(share, error_feedback)


def _indices(entries: int, count: int, key: Key) -> Tensor:
    """So many different places, each as likely as any other, in order."""
    drawn = key.fold("places").numpy().choice(entries, count, replace=False, shuffle=False)
    return torch.from_numpy(np.sort(drawn))

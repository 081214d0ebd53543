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

from parley.channels.base import channel
from parley.channels.vector import Layout, VectorChannel, check_share, share_of
from parley.core.form import Form
from parley.core.key import Key
from parley.core.tree import Tree


@channel("random-k")
@dataclass(frozen=True)
class RandomK(VectorChannel):
    """Sends entries drawn at random, scaled up so that they are right on average; their places need not travel."""

    passes: ClassVar[tuple[str, ...]] = ("random-k/values",)
    isometric: ClassVar[bool] = True

    share: float
    """Entries sent, as a share of all compressible ones, in (0, 1]."""
    error_feedback: bool = False
    """Send them as they are and add what was not sent to the client's next message, in place of scaling them up."""

    def __post_init__(self) -> None:
        check_share(self.share, "random-k")

    @property
    def unbiased(self) -> bool:
        return not self.error_feedback

    @property
    def feedback(self) -> bool:
        return self.error_feedback

    def variance(self, entries: int) -> float | None:
        return entries / share_of(self.share, entries) - 1 if self.unbiased else None

    def contraction(self, entries: int) -> float | None:
        return share_of(self.share, entries) / entries if self.error_feedback else None

    def compress(self, vector: Tensor, layout: Layout, key: Key) -> Tree:
        values = vector[self._places(len(vector), key)]
        return {"values": values * (len(vector) / len(values)) if self.unbiased else values}

    def restore(self, parts: Tree, layout: Layout, key: Key) -> Tensor:
        places = self._places(layout.entries, key)
        return torch.zeros(layout.entries, dtype=layout.dtype).index_put_((places,), parts["values"])

    def sizes(self, layout: Layout) -> Form:
        return Form(values=(layout.dtype, (share_of(self.share, layout.entries),)))

    def _places(self, entries: int, key: Key) -> Tensor:
        return drawn_places(entries, share_of(self.share, entries), key)


def random_k(share: float, error_feedback: bool = False) -> RandomK:
    """See `RandomK`."""
    return RandomK(share, error_feedback)


def drawn_places(entries: int, count: int, key: Key) -> Tensor:
    """So many different places, each as likely as any other, in order."""
    drawn = key.fold("places").numpy().choice(entries, count, replace=False, shuffle=False)
    return torch.from_numpy(np.sort(drawn))

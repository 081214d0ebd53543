"""Top-k sparsification (Aji and Heafield, 2017) with error feedback (Stich et al., 2018).

The k entries of largest size among all compressible trees together are sent as their values and positions (int32):
8 bytes an entry in float32. What is left out is added to the client's next message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from parley.channels.base import channel
from parley.channels.vector import Layout, VectorChannel, check_share, share_of
from parley.core.errors import WireError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.tree import Tree

_FEW = 2**14
"""Below so many entries nothing is gained by looking at a sample of them first."""


@channel("top-k")
@dataclass(frozen=True)
class TopK(VectorChannel):
    """Sends the largest entries only; by default clients make up for the rest later (error feedback)."""

    passes: ClassVar[tuple[str, ...]] = ("top-k/values",)
    isometric: ClassVar[bool] = True

    share: float
    """Entries sent, as a share of all compressible ones, in (0, 1]."""
    error_feedback: bool = True
    """Add what was not sent to the client's next message."""

    def __post_init__(self) -> None:
        check_share(self.share, "top-k")

    @property
    def feedback(self) -> bool:
        return self.error_feedback

    @property
    def nonexpansive(self) -> bool:
        return not self.error_feedback

    def contraction(self, entries: int) -> float:
        return share_of(self.share, entries) / entries

    def compress(self, vector: Tensor, layout: Layout, key: Key) -> Tree:
        indices = largest(vector, share_of(self.share, len(vector)))
        return {"values": vector[indices], "places": indices.to(torch.int32)}

    def restore(self, parts: Tree, layout: Layout, key: Key) -> Tensor:
        indices = parts["places"].long()
        in_order = bool((indices[1:] > indices[:-1]).all())
        if not in_order or int(indices[0]) < 0 or int(indices[-1]) >= layout.entries:
            raise WireError("it names places twice, out of order or beyond the model.")
        return torch.zeros(layout.entries, dtype=layout.dtype).index_put_((indices,), parts["values"])

    def sizes(self, layout: Layout) -> Form:
        count = share_of(self.share, layout.entries)
        return Form(values=(layout.dtype, (count,)), places=(torch.int32, (count,)))


def top_k(share: float, error_feedback: bool = True) -> TopK:
    """`top_k(0.01) | clip(1.0)`: see `TopK`."""
    return TopK(share, error_feedback)


def largest(vector: Tensor, count: int) -> Tensor:
    """The places of the `count` entries of largest size, in order.

    Of a long vector only those are sorted that a sample of it says may be among them, which is several times faster.
    """
    size = vector.abs()
    if len(vector) >= _FEW and count <= len(vector) // 4:
        sample = size[:: len(vector) // _FEW * 4 or 1]
        # The chance that too few pass is small, as 1.3 times the share plus four deviations do on average.
        share = count / len(vector)
        rank = int(1.3 * share * len(sample) + 4 * (share * len(sample)) ** 0.5) + 1
        if rank < len(sample):
            passed = (size >= sample.topk(rank, sorted=False).values.min()).nonzero().squeeze(1)
            if len(passed) >= count:
                chosen = size[passed].topk(count, sorted=False).indices
                return passed[chosen].sort().values
    return size.topk(count, sorted=False).indices.sort().values

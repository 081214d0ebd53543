"""Scaled signs with error feedback (EF-signSGD; Karimireddy et al., 2019): one bit an entry and a scale.

    C(x) = ||x||_1 / d * sign(x),      ||C(x) - x||^2 = ||x||^2 - ||x||_1^2 / d <= (1 - 1/d) ||x||^2

Without feedback signs are biased and need not converge at all (the paper's counterexamples).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parley.channels.base import channel
from parley.channels.packing import pack, packed_size, unpack
from parley.channels.quantise import spread
from parley.channels.vector import Layout, Scope, VectorChannel
from parley.core.errors import WireError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.tree import Tree


@channel("sign")
@dataclass(frozen=True)
class Sign(VectorChannel):
    """Sends the sign of every entry and their mean size; by default clients make up for the rest later."""

    error_feedback: bool = True
    """Add what was not sent to the client's next message."""
    scope: Scope = "tensor"
    """A mean size for every tensor, or one for the message."""

    @property
    def feedback(self) -> bool:
        return self.error_feedback

    @property
    def nonexpansive(self) -> bool:
        return not self.error_feedback

    def contraction(self, entries: int) -> float:
        return 1 / entries

    def compress(self, vector: Tensor, layout: Layout, key: Key) -> Tree:
        pieces = vector.split(layout.segments(self.scope))
        sizes = torch.stack([piece.abs().sum() / max(len(piece), 1) for piece in pieces])
        return {"bits": pack((vector >= 0).view(torch.uint8), 1), "sizes": sizes}

    def restore(self, parts: Tree, layout: Layout, key: Key) -> Tensor:
        if bool((parts["sizes"] < 0).any()):
            raise WireError("it has a mean size below 0.")
        signs = unpack(parts["bits"], layout.entries, 1, 1).to(layout.dtype).mul_(2).sub_(1)
        return spread(signs, layout.segments(self.scope), parts["sizes"])

    def sizes(self, layout: Layout) -> Form:
        count = len(layout.segments(self.scope))
        return Form(bits=(torch.uint8, (packed_size(layout.entries, 1),)), sizes=(layout.dtype, (count,)))


def sign(error_feedback: bool = True, scope: Scope = "tensor") -> Sign:
    """See `Sign`."""
    return Sign(error_feedback, scope)

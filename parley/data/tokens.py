"""Sequences of token ids as samples."""

from __future__ import annotations

import torch
from torch import Tensor

IGNORE = -100
"""Target value of positions that do not count, by torch's convention (padding in sequences)."""


def next_tokens(x: Tensor, padding: int) -> Tensor:
    """Targets of ids [n, T]: at each position the id that follows; the last one and padding do not count.

    >>> next_tokens(torch.tensor([[5, 7, 0]]), padding=0)
    tensor([[   7, -100, -100]])
    """
    y = torch.full_like(x, IGNORE)
    y[:, :-1] = x[:, 1:]
    return y.masked_fill_(y == padding, IGNORE)

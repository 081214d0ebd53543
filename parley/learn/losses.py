"""Losses by name. Each gives one number per sample, [B]; the mean over a batch is taken by the training core."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from parley.core.registry import Registry

Loss = Callable[[Tensor, Tensor], Tensor]
losses: Registry[Loss] = Registry("loss")

IGNORE = -100
"""Target value of positions that do not count (padding in sequences)."""


@losses("cross-entropy")
def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs [B, C] and classes [B]; or [B, T, C] and [B, T], averaged over the positions that count."""
    if outputs.ndim == 2:
        return F.cross_entropy(outputs, targets, reduction="none")
    each = F.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none", ignore_index=IGNORE).flatten(1)
    count = (targets != IGNORE).flatten(1).sum(1)
    return each.sum(1) / count.clamp(min=1)


@losses("half-squares")
def half_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """1/2 ||output - target||^2: the quadratic loss of papers 000 and 001."""
    return (outputs - targets.view_as(outputs)).square().flatten(1).sum(1) / 2


@losses("mse")
def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error over the outputs of a sample."""
    return (outputs - targets.view_as(outputs)).square().flatten(1).mean(1)

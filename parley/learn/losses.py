"""Losses by name. Each gives one number per sample, [B]; the mean over a batch is taken by the training core."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from parley.core.registry import Registry
from parley.data.tokens import IGNORE as IGNORE

Loss = Callable[[Tensor, Tensor], Tensor]
losses: Registry[Loss] = Registry("loss")


@losses("cross-entropy")
def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs [B, C] and classes [B]; or [B, C, T] and [B, T], averaged over the positions that count."""
    each = F.cross_entropy(outputs, targets, reduction="none", ignore_index=IGNORE)
    if each.ndim == 1:
        return each
    count = (targets != IGNORE).flatten(1).sum(1)
    return each.flatten(1).sum(1) / count.clamp(min=1)


@losses("half-squares")
def half_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """1/2 ||output - target||^2: the quadratic loss of papers 000 and 001."""
    return (outputs - targets.view_as(outputs)).square().flatten(1).sum(1) / 2


@losses("mse")
def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error over the outputs of a sample."""
    return (outputs - targets.view_as(outputs)).square().flatten(1).mean(1)

"""Losses by name. Each gives one number per sample, [B]; the mean over a batch is taken by the training core."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from parley.core.errors import InputError
from parley.core.registry import Registry
from parley.data.tokens import IGNORE as IGNORE

Loss = Callable[[Tensor, Tensor], Tensor]
losses: Registry[Loss] = Registry("loss")

_TARGETS = {"target", "targets", "label", "labels", "true", "truth", "y", "y_true"}
_OUTPUTS = {"output", "outputs", "logits", "pred", "preds", "predicted", "prediction", "predictions", "scores"}
_OUTPUTS |= {"probabilities", "y_hat", "y_pred", "y_prob", "y_score"}


def check_order(function: Callable[..., Any], what: str) -> None:
    """Refuse a function that says by its parameters' names that it takes targets first, as scikit-learn's do."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # written in C, for one
        return
    if names[:1] and (names[0].lower() in _TARGETS or (len(names) > 1 and names[1].lower() in _OUTPUTS)):
        raise InputError(
            f"{what} takes ({', '.join(names)}), targets first; metrics and losses take (outputs, targets): swap the "
            "two, or name them so."
        )


@dataclass(frozen=True)
class Weighted:
    """Another loss times the weight of each sample's class."""

    loss: Loss
    weights: tuple[float, ...]

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets) * outputs.new_tensor(self.weights)[targets]


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

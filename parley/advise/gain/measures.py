"""What an error is when models are judged: the study's loss, or for classes the error rate or the Brier score."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from parley.core.errors import InputError, nearest
from parley.training.losses import IGNORE, Loss, cross_entropy, half_squares, mse
from parley.training.task import Task

Array = npt.NDArray[np.float64]
Measure = Callable[[Tensor, Tensor], Tensor]
"""Outputs and targets of B samples -> [k, B]: the loss judged by; for the error rate also the loss that breaks ties."""

MEASURES = ("loss", "error-rate", "brier")
SQUARED = "mean squared error"
_LOSSES: dict[Loss, str] = {
    cross_entropy: "cross-entropy",
    mse: SQUARED,
    half_squares: "half the squared error",
}
_TIE = 1e-6


def check_measure(task: Task, name: str) -> None:
    """Refuse unknown measures, and those for classes where there are none."""
    if name not in MEASURES:
        raise InputError(f"unknown measure '{name}': {nearest(name, MEASURES)}")
    if name != "loss" and task.info.kind == "regression":
        what = "error rate" if name == "error-rate" else "Brier score"
        raise InputError(f"the {what} is for classes, and this is a regression; use the measure loss.")


def shown(task: Task, name: str) -> str:
    """The measure in words."""
    return {"error-rate": "error rate", "brier": "Brier score"}.get(name) or _LOSSES.get(task.loss, "loss")


def make_measure(task: Task, name: str) -> Measure:
    """`loss` is the task's own, `error-rate` the share of wrong classes, `brier` the squared error of probabilities."""

    def by_loss(outputs: Tensor, y: Tensor) -> Tensor:
        return task.loss(outputs, y).double().unsqueeze(0)

    def by_errors(outputs: Tensor, y: Tensor) -> Tensor:
        return torch.stack([_mean((outputs.argmax(1) != y).double(), y), task.loss(outputs, y).double()])

    def by_brier(outputs: Tensor, y: Tensor) -> Tensor:
        known = torch.where(y == IGNORE, 0, y)
        wanted = F.one_hot(known, outputs.shape[1]).movedim(-1, 1)
        return _mean((outputs.double().softmax(1) - wanted).square().sum(1), y).unsqueeze(0)

    return {"loss": by_loss, "error-rate": by_errors, "brier": by_brier}[name]


def score(losses: Array) -> Array:
    """What the choice among candidates goes by: [k, candidates, samples] -> [candidates]; a diverged model is last."""
    sums = losses.sum(axis=-1)
    return np.asarray(np.nan_to_num(sums[0] + _TIE * sums[-1], nan=np.inf, posinf=np.inf), dtype=np.float64)


def _mean(each: Tensor, y: Tensor) -> Tensor:
    """[B]: the mean over the positions of a sample that count."""
    counted = (y != IGNORE).reshape(len(y), -1)
    return (each.reshape(len(y), -1) * counted).sum(1) / counted.sum(1).clamp(min=1)

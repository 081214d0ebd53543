"""Aggregation by distillation: one network in place of the mean of several functions (Shen et al., (17)).

    min_theta  sum over public x of  loss(h_theta(x), sum_i w_i g_i(x))

The teachers are evaluated once; then the student, which begins from weights that are given, trains on the shared local
core with their mean outputs as targets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.tree import Tree
from parley.data import ClientData
from parley.training.batches import Work
from parley.training.devices import wide
from parley.training.local import Trained, train
from parley.training.losses import Loss, half_squares
from parley.training.optimizers import LocalOptimizer
from parley.training.task import Predictor, Task

DistillationLoss = Literal["mse", "kl"]
_CHUNK = 1024
"""Public inputs that a teacher is evaluated on at once."""


@dataclass(frozen=True)
class Distillation:
    """How a student is fitted to outputs at the public inputs."""

    loss: DistillationLoss = "mse"
    """Squared distance of the raw outputs, or the divergence KL(teacher || student) of the classes' chances."""
    epochs: int = 100
    batch: int | None = 64
    lr: float = 0.001
    optimizer: str = "adam"
    clip: float | None = 5.0
    """Largest norm of a step's gradient."""

    def __post_init__(self) -> None:
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"the student's clip must be above 0, not {self.clip}.")
        self._work()
        self._optimizer()

    def __call__(self, task: Task, start: Tree, buffers: Tree, teacher: Tensor, key: Key) -> Trained:
        """The student that began from `start`; `teacher` [m, outputs] are the outputs at the public inputs."""
        data = ClientData(public_inputs(task), teacher.to(next(iter(start.values())).dtype))
        return train(
            replace(task, loss=_LOSSES[self.loss]),
            start,
            data,
            key,
            work=self._work(),
            optimizer=self._optimizer(),
            buffers=buffers or None,
            clip=self.clip,
        )

    def _work(self) -> Work:
        return Work(epochs=self.epochs, batch=self.batch)

    def _optimizer(self) -> LocalOptimizer:
        return LocalOptimizer(self.optimizer, self.lr)


def public_inputs(task: Task) -> Tensor:
    """The task's unlabelled public inputs, of which there must be some."""
    if task.public is None or not len(task.public):
        raise InputError(
            "this method distils on public inputs, but there are none; set data.public or data.public_fraction, or "
            "give the federation public inputs."
        )
    return task.public


@torch.no_grad()
def mean_outputs(predictors: Iterable[Predictor], weights: Iterable[float], x: Tensor) -> Tensor:
    """sum_i w_i g_i(x) / sum_i w_i in float64, [m, outputs]; one teacher after the other."""
    total, scale = torch.zeros(1, dtype=torch.float64), 0.0
    for predict, weight in zip(predictors, weights, strict=True):
        total = total + weight * outputs(predict, x)
        scale += weight
    return total / scale


@torch.no_grad()
def outputs(predict: Predictor, x: Tensor) -> Tensor:
    """g(x) in the widest precision of the device, some rows at a time."""
    return torch.cat([predict(rows).to(wide(x.device)) for rows in x.split(_CHUNK)])


def divergence(outputs: Tensor, teacher: Tensor) -> Tensor:
    """KL(softmax(teacher) || softmax(outputs)) of each sample, [B], from logits [B, C] or [B, C, positions]."""
    p, q = F.log_softmax(teacher, 1), F.log_softmax(outputs, 1)
    each = (p.exp() * (p - q)).sum(1)
    return each if each.ndim == 1 else each.flatten(1).mean(1)


_LOSSES: dict[DistillationLoss, Loss] = {"mse": half_squares, "kl": divergence}

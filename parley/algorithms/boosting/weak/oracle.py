"""Weak learning oracles (Shen et al.): a learner close to phi in one of three norms, and how close it came.

l2           ||h - phi|| <= (1 - gamma) ||phi|| over the client's samples (5)
l-infinity   the same of the largest ||h(x) - phi(x)|| (10)
lipschitz    the same of ||phi||^2 = max ||phi(x)||^2 + mean ||grad phi(z)||^2, which is what (21) makes small;
             by how much the largest value (14) and the Lipschitz constant (15) shrink is told too
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from parley.algorithms.boosting.weak.base import Learner, Norm, Slopes
from parley.algorithms.boosting.weak.lipschitz import Extension, between, steepest
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.tree import Tree
from parley.training.task import Task

_ROUNDING = 1e-6
"""A learner that does nothing at all has gamma = 0, give or take rounding of float32."""


@dataclass(frozen=True)
class Answer:
    """What an oracle gave."""

    learner: Tree
    values: Tensor
    """The learner at the client's samples, [n, outputs] in float64."""
    gamma: float
    """What it achieved on them."""
    parts: dict[str, float] = field(default_factory=dict)
    """In the Lipschitz norm: gamma of (14), `values`, and of (15), `constant`."""


@dataclass
class Oracle:
    """Of one client in one round: asked for learners close to phi, given at the client's samples."""

    learner: Learner
    task: Task
    x: Tensor
    norm: Norm

    def __call__(self, phi: Tensor, key: Key) -> Answer:
        learner = self.learner.fit(self.task, self.x, phi, key, self.norm)
        values = self.learner.values(self.task, learner, self.x)
        return self._judged(learner, values, achieved(values, phi, self.norm))

    def _judged(self, learner: Tree, values: Tensor, gamma: float, parts: dict[str, float] | None = None) -> Answer:
        if not gamma > -_ROUNDING:
            raise InputError(
                f'its weak learner is further from the gradient than zero is (gamma = {gamma:.3g} in "{self.norm}"), '
                "so it learns nothing: train it longer, lower its step size, or take another learner."
            )
        return Answer(learner, values, gamma, parts or {})


class LipschitzOracle(Oracle):
    """Asked for phi = u - Delta, which it knows everywhere: u is the extension, Delta what its own learners missed."""

    def __init__(self, learner: Learner, task: Task, x: Tensor, extension: Extension, key: Key, residual: bool) -> None:
        super().__init__(learner, task, x, "lipschitz")
        self.at, self.extension, self.residual = between(x, key), extension, residual
        self.u, self.slopes = extension.values(self.at), extension.gradients(self.at)
        self.missed = torch.zeros_like(self.u), torch.zeros_like(self.slopes)
        """Delta and its gradients at these points, as the residual of the next question."""

    def __call__(self, phi: Tensor, key: Key) -> Answer:
        wanted = Slopes(self.at, self.u - self.missed[0], self.slopes - self.missed[1])
        learner = self.learner.fit(self.task, self.x, phi, key, self.norm, wanted)
        values, fitted = (self.learner.values(self.task, learner, x) for x in (self.x, self.at))
        off, steep = fitted - wanted.values, self.learner.slopes(self.task, learner, self.at) - wanted.gradients
        if self.residual:  # Algorithm 3, line 6: Delta <- Delta - u + h
            self.missed = off, steep
        flat = torch.cat([self.x, self.at]).cpu().double().flatten(1)
        rises = [steepest(flat, torch.cat(pair)) for pair in ((values - phi, off), (phi, wanted.values))]
        return self._judged(
            learner,
            values,
            1 - _ratio(_sobolev(values - phi, steep), _sobolev(phi, wanted.gradients)),
            {"values": achieved(values, phi, self.norm), "constant": 1 - _ratio(*rises)},
        )


def size(values: Tensor, norm: Norm) -> float:
    """||values|| over the samples, rows [n, outputs]: the root mean square, or the largest."""
    each = values.norm(dim=1)
    return float(each.square().mean().sqrt() if norm == "l2" else each.max())


def achieved(h: Tensor, phi: Tensor, norm: Norm) -> float:
    """The gamma with which h stands for phi at the samples; 1 if there was nothing to learn."""
    return 1 - _ratio(size(h - phi, norm), size(phi, norm))


def _sobolev(values: Tensor, gradients: Tensor) -> float:
    slope = float(gradients.square().sum((1, 2)).mean())
    return float((size(values, "lipschitz") ** 2 + slope) ** 0.5)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else float(part > 0)

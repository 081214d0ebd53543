"""Oracles whose answers are known exactly: functions on a few cells, and cones on the line.

On cells an input is the cell's number, one column, and a learner is a table of its values. `Shrunk` is the oracle
h = gamma phi, which (5) and (10) hold for with equality; `LargestCell` fits one cell alone; `Opposing` is the adversary
of Theorem 4.2. `Cones` is h = gamma phi for the Lipschitz oracle, where phi is a multiple of the extension (13).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.boosting.weak import Learner, Norm, Slopes
from parley.algorithms.boosting.weak.lipschitz import Extension, steepest
from parley.core.key import Key
from parley.core.tree import Tree
from parley.theory.theta import Array
from parley.training.task import Task

__all__ = ["Cells", "Cones", "LargestCell", "Opposing", "Shrunk", "largest_cell"]


@dataclass(frozen=True)
class Cells(Learner):
    """A table over `cells` cells, 0 where a client has no samples; several samples of a cell are averaged."""

    norms: ClassVar[tuple[Norm, ...]] = ("l2", "l-infinity")

    cells: int

    def fit(
        self, task: Task, x: Tensor, phi: Tensor, key: Key, norm: Norm = "l2", slopes: Slopes | None = None
    ) -> Tree:
        cell = _cell(x)
        count = torch.zeros(self.cells, dtype=torch.float64).index_add(0, cell, torch.ones(len(x), dtype=torch.float64))
        total = torch.zeros(self.cells, phi.shape[1], dtype=torch.float64).index_add(0, cell, phi)
        return {"table": self.shaped(total / count.clamp(min=1)[:, None], count)[None]}

    def shaped(self, means: Tensor, count: Tensor) -> Tensor:
        """The table, from phi's mean in every cell [cells, outputs] and how many samples it has."""
        raise NotImplementedError

    def sum(self, task: Task, learners: Tree, coefficients: Tensor, x: Tensor) -> Tensor:
        table = (learners["table"] * coefficients[:, None, None]).sum(0)
        return table[_cell(x)]


@dataclass(frozen=True)
class Shrunk(Cells):
    """h = gamma phi on the client's cells; elsewhere `elsewhere` times the mean of phi."""

    gamma: float = 0.5
    elsewhere: float = 0.0

    def shaped(self, means: Tensor, count: Tensor) -> Tensor:
        occupied = (count > 0)[:, None]
        mean = (means * count[:, None]).sum(0) / count.sum()
        return torch.where(occupied, self.gamma * means, self.elsewhere * mean)


@dataclass(frozen=True)
class LargestCell(Cells):
    """phi on the cell that has most of its norm, 0 on all others: gamma >= 1 - sqrt(1 - 1/cells)."""

    def shaped(self, means: Tensor, count: Tensor) -> Tensor:
        weight = count * means.square().sum(1)
        only = torch.zeros(self.cells, 1, dtype=torch.float64)
        only[weight.argmax()] = 1.0
        return only * means


@dataclass(frozen=True)
class Opposing(Cells):
    """Exact on the client's own cell, and the opposite of the other's gradient on the other's (Theorem 4.2)."""

    norms: ClassVar[tuple[Norm, ...]] = ("l-infinity",)

    gradients: tuple[tuple[float, ...], ...] = ()
    """The clients' gradients at f = 0, by cell: an adversary knows them."""

    def shaped(self, means: Tensor, count: Tensor) -> Tensor:
        return torch.where((count > 0)[:, None], means, -torch.tensor(self.gradients, dtype=torch.float64))


@dataclass(frozen=True)
class Cones(Learner):
    """gamma min_j (phi_j + L ||x - x_j||) with the smallest L that phi allows: gamma phi, everywhere."""

    norms: ClassVar[tuple[Norm, ...]] = ("lipschitz",)

    gamma: float = 0.5

    def fit(
        self, task: Task, x: Tensor, phi: Tensor, key: Key, norm: Norm = "l2", slopes: Slopes | None = None
    ) -> Tree:
        flat = x.double().flatten(1)
        return {
            "points": flat[None],
            "heights": phi[None],
            "slope": torch.tensor([steepest(flat, phi)], dtype=torch.float64),
        }

    def sum(self, task: Task, learners: Tree, coefficients: Tensor, x: Tensor) -> Tensor:
        total = torch.zeros(len(x), task.info.outputs, dtype=torch.float64)
        for number, coefficient in enumerate(coefficients.tolist()):
            total += coefficient * self.gamma * self._cone(learners, number).values(x)
        return total

    def slopes(self, task: Task, learner: Tree, x: Tensor) -> Tensor:
        return self.gamma * self._cone(learner, 0).gradients(x)

    def _cone(self, learners: Tree, number: int) -> Extension:
        return Extension(learners["points"][number], learners["heights"][number], float(learners["slope"][number]))


def _cell(x: Tensor) -> Tensor:
    return x.flatten(1)[:, 0].round().long()


def largest_cell(phi: Array, g: Array) -> Array:
    """phi where it is largest, else 0 (all cells weigh the same)."""
    best = np.square(phi).sum(-1).argmax(1)
    h = np.zeros_like(phi)
    h[np.arange(len(phi)), best] = phi[np.arange(len(phi)), best]
    return h

"""Regression trees as weak learners, grown by scikit-learn and kept as flat tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.algorithms.boosting.weak.base import Increment, Learner, Norm, Slopes, learners
from parley.algorithms.trees.ensemble import Trees, check_depth, complete, feature_type
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.tree import Tree
from parley.theory.theta import Array
from parley.training.task import Task

_ROWS = 2048
"""Rows that go through a whole ensemble at once."""


@learners("tree")
@dataclass(frozen=True)
class RegressionTree(Learner):
    """A regression tree: it sends features, thresholds and leaf values, and neither counts nor impurities."""

    norms: ClassVar[tuple[Norm, ...]] = ("l2", "l-infinity")

    depth: int = 4
    """Levels of splits."""
    leaf: int = 1
    """Samples that a leaf must have at least; leaves of few samples say much about them."""

    def __post_init__(self) -> None:
        check_depth(self.depth)
        if self.depth < 1 or self.leaf < 1:
            raise InputError(f"depth and leaf must be at least 1, not {self.depth} and {self.leaf}.")

    def fit(
        self, task: Task, x: Tensor, phi: Tensor, key: Key, norm: Norm = "l2", slopes: Slopes | None = None
    ) -> Tree:
        """In L2 leaves have the mean of phi, in L-infinity the middle of its range."""
        from sklearn.tree import DecisionTreeRegressor

        inputs, targets = x.cpu().reshape(len(x), -1).numpy(), phi.cpu().numpy()
        grown = DecisionTreeRegressor(
            max_depth=self.depth, min_samples_leaf=self.leaf, random_state=key.seed % 2**32
        ).fit(inputs, targets)
        tree = grown.tree_
        values = tree.value[:, :, 0]
        if norm == "l-infinity":
            values = _middles(grown.apply(inputs), targets, tree.node_count)
        return complete(
            tree.children_left,
            tree.children_right,
            tree.feature,
            tree.threshold,
            values,
            self.depth,
            inputs.shape[1],
            x.dtype,
        ).tensors()

    def form(self, task: Task, count: int | None) -> Form:
        nodes = (count, 2**self.depth - 1)
        return Form.of(
            features=(feature_type(prod(task.info.shape)), nodes),
            thresholds=(None, nodes),
            values=(None, (count, 2**self.depth, task.info.outputs)),
        )

    def sound(self, task: Task, learners: Tree) -> bool:
        features = learners["features"]
        return bool((features >= 0).all() and (features < prod(task.info.shape)).all())

    def sum(self, task: Task, learners: Tree, coefficients: Tensor, x: Tensor) -> Tensor:
        return Trees.of(learners).sum(x, coefficients)

    def fold(self, task: Task, rounds: Sequence[Increment], x: Tensor, before: Tensor | None) -> Tensor:
        """As `Learner.fold`, to the bit, with the trees of all rounds walked together."""
        if len(rounds) < 2:
            return super().fold(task, rounds, x, before)
        trees = Trees.of(self.joined([round_.learners for round_ in rounds]))
        scaled = [
            round_.learners["values"].cpu().double().numpy() * round_.coefficients.cpu().numpy()[:, None, None]
            for round_ in rounds
        ]
        blocks = []
        for start in range(0, len(x), _ROWS):
            rows = slice(start, start + _ROWS)
            leaves = iter(trees.leaves(x[rows]))
            total = np.zeros((len(x[rows]), trees.outputs)) if before is None else before[rows].cpu().numpy()
            for round_, values in zip(rounds, scaled, strict=True):
                added = np.zeros_like(total)
                for tree in values:
                    added += tree.take(next(leaves), axis=0)
                total = total * float(round_.decay) + added
            blocks.append(torch.from_numpy(total))
        return torch.cat(blocks) if blocks else super().fold(task, (), x, before)


def _middles(leaves: NDArray[Any], targets: Array, nodes: int) -> Array:
    """The middle of the range of the targets in each leaf: what is closest to all of them, output by output."""
    low = np.full((nodes, targets.shape[1]), np.inf)
    high = np.full((nodes, targets.shape[1]), -np.inf)
    np.minimum.at(low, leaves, targets)
    np.maximum.at(high, leaves, targets)
    filled = np.isfinite(low)
    return (np.where(filled, low, 0.0) + np.where(filled, high, 0.0)) / 2

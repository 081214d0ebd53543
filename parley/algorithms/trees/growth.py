"""Growing trees level by level from sums alone: what the server of histogram boosting does between two exchanges.

Of the two children of a node only the one with fewer rows is asked for; the other's sums are the node's minus these.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from parley.algorithms.trees.ensemble import Trees, feature_type
from parley.algorithms.trees.histograms import SCALE, Floats, Whole
from parley.algorithms.trees.splits import Rules, Splits, best_splits, leaf_values

Sums = NDArray[np.int64] | NDArray[np.float64]
"""[nodes, columns, bins, statistics]: fixed-point whole numbers, or real ones."""


@dataclass
class Growth:
    """Trees under way, one for each output, all at the same level."""

    edges: Floats
    """[columns of the data, bins]."""
    columns: Whole
    """The columns that these trees may look at, rising."""
    outputs: int
    depth: int
    rules: Rules
    lr: float
    unit: float
    level: int = 0
    importance: Floats = field(init=False)
    """What the splits of each column of the data have gained."""
    _sums: Sums = field(init=False)
    """Of the nodes of this level that may be split, whose trees and numbers are:"""
    _tree: Whole = field(init=False)
    _node: Whole = field(init=False)
    _low: Floats = field(init=False)
    _high: Floats = field(init=False)

    def __post_init__(self) -> None:
        nodes = 2**self.depth - 1
        self.importance = np.zeros(len(self.edges))
        self._feature = np.zeros((self.outputs, nodes), np.int64)
        self._threshold = np.full((self.outputs, nodes), np.finfo(np.float64).max)
        self._missing = np.zeros((self.outputs, nodes), np.bool_)
        self._value = np.zeros((self.outputs, 2**self.depth))
        self._tree, self._node = np.arange(self.outputs), np.zeros(self.outputs, np.int64)
        self._low, self._high = np.full(self.outputs, -np.inf), np.full(self.outputs, np.inf)

    @property
    def roots(self) -> Whole:
        """The nodes to ask for at first, [nodes, 2]: tree and number."""
        return np.stack([self._tree, self._node], axis=1)

    def begin(self, sums: Sums) -> None:
        """The sums of the roots."""
        self._sums = sums

    def split(self) -> tuple[Whole, Whole]:
        """Split the nodes of this level: what was split [nodes, 5] and which children to ask for [nodes, 2].

        A split is tree, number, column, bin and whether missing values go right. Nothing to ask for: the trees are
        done.
        """
        if len(self._tree) == 0:
            return np.zeros((0, 5), np.int64), np.zeros((0, 2), np.int64)
        best = best_splits(self._real(self._sums), self.rules, self._low, self._high)
        inner = best.gain > 0
        column = self.columns[best.column]
        at = (self._tree[inner], 2**self.level - 1 + self._node[inner])
        self._feature[at] = column[inner]
        self._threshold[at] = self.edges[column[inner], best.bin[inner]]
        self._missing[at] = best.missing_right[inner]
        np.add.at(self.importance, column[inner], best.gain[inner])
        if self.level == 0:  # further down, leaves are filled in where their parents are split
            self._fill(self._tree, self._node, best.left + best.right, self._low, self._high)
        parts = (self._tree, self._node, column, best.bin, best.missing_right)
        made = np.stack([part[inner].astype(np.int64) for part in parts], axis=1)
        asked = self._children(best, np.flatnonzero(inner))
        self.level += 1
        return made, asked

    def _children(self, splits: Splits, inner: Whole) -> Whole:
        """Leaf values for all children; those that may be split become the next level."""
        low, high = (np.stack([limit[inner]] * 2, axis=1) for limit in (self._low, self._high))
        sides = np.stack([splits.left[inner], splits.right[inner]], axis=1)
        if self.rules.signs is not None:
            values = self.rules.value(sides[..., 0], sides[..., 1], low, high)
            middle, sign = values.mean(axis=1), self.rules.signs[splits.column[inner]]
            high[sign > 0, 0] = low[sign > 0, 1] = middle[sign > 0]
            low[sign < 0, 0] = high[sign < 0, 1] = middle[sign < 0]
        for side in (0, 1):
            node = 2 * self._node[inner] + side
            self._fill(self._tree[inner], node, sides[:, side], low[:, side], high[:, side], self.level + 1)
        larger = sides[..., 2].max(axis=1)
        onward = np.flatnonzero((larger >= 2 * max(self.rules.min_leaf, 1)) & (self.level + 1 < self.depth))
        parents = inner[onward]
        self._smaller = (sides[onward, 1, 2] < sides[onward, 0, 2]).astype(np.int64)
        self._sums = self._sums[parents]
        self._tree, self._node = self._tree[parents], self._node[parents]
        self._ends = low[onward], high[onward]
        return np.stack([self._tree, 2 * self._node + self._smaller], axis=1)

    def siblings(self) -> Whole:
        """The other children, for asking where their sums cannot be had by subtraction."""
        return np.stack([self._tree, 2 * self._node + 1 - self._smaller], axis=1)

    def take(self, sums: Sums, siblings: Sums | None = None) -> None:
        """The sums of the children asked for; of the others too where they had to be asked for."""
        others = self._sums - sums if siblings is None else siblings
        both = np.stack([sums, others], axis=1)  # side by side, so that nodes stay in the order of their trees
        self._sums = both.reshape(-1, *both.shape[2:])
        sides = np.stack([self._smaller, 1 - self._smaller], axis=1).ravel()
        rows = np.repeat(np.arange(len(self._tree)), 2)
        self._low, self._high = self._ends[0][rows, sides], self._ends[1][rows, sides]
        self._tree, self._node = self._tree[rows], 2 * self._node[rows] + sides

    def _fill(self, tree: Whole, node: Whole, sums: Floats, low: Floats, high: Floats, level: int = 0) -> None:
        """The values below nodes of a level, which splits further down may overwrite; `sums` [nodes, 3]."""
        value = leaf_values(self.lr * self.rules.value(sums[:, 0], sums[:, 1], low, high), self.unit)
        width = 2 ** (self.depth - level)
        self._value[tree[:, None], node[:, None] * width + np.arange(width)] = value[:, None]

    def _real(self, sums: Sums) -> Floats:
        """G, H and counts, [3, nodes, columns, bins]."""
        step = 1 / SCALE if sums.dtype == np.int64 else 1.0
        result = np.empty((3, *sums.shape[:-1]))
        np.multiply(sums[..., 0], step * self.unit, out=result[0])
        np.multiply(sums[..., -2 if sums.shape[-1] == 3 else -1], step if sums.shape[-1] == 3 else 1.0, out=result[1])
        result[2] = sums[..., -1]
        return result

    def trees(self) -> Trees:
        """The trees, complete."""
        return Trees(
            torch.from_numpy(self._feature).to(feature_type(len(self.edges))),
            torch.from_numpy(self._threshold),
            torch.from_numpy(self._value)[..., None],
            torch.from_numpy(self._missing),
        )

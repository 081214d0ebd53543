"""Regression trees as flat tensors: what splits and what comes out, and nothing else.

A tree of depth d is complete: node j has the children 2j + 1 (inputs up to its threshold) and 2j + 2 (above it), its
2^d leaves follow. A branch that ends earlier goes on with nodes that send everything left. So a tree needs no
structure beside its features, thresholds and leaf values: in particular no counts, impurities or hessians, from which
training data can be rebuilt. Trees of one depth are stacked along the first axis and evaluated together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.tree import Tree

DEEPEST = 12
"""Levels; a complete tree has 2^depth leaves."""
_ROWS, _TREES = 2048, 8
"""Rows and trees that go down together: what they touch stays in the cache."""


@dataclass(frozen=True, slots=True)
class Trees:
    """T complete trees of one depth."""

    features: Tensor
    """[T, 2^depth - 1], int16 or int32: the column that a node looks at."""
    thresholds: Tensor
    """[T, 2^depth - 1], float: inputs above it go right. Inputs are compared in its dtype."""
    values: Tensor
    """[T, 2^depth, outputs], float: what the leaves give, from left to right."""
    missing: Tensor | None = None
    """[T, 2^depth - 1], bool: NaN goes right; without it, NaN goes left everywhere."""

    @property
    def depth(self) -> int:
        return int(self.values.shape[1]).bit_length() - 1

    @property
    def outputs(self) -> int:
        return int(self.values.shape[2])

    def __len__(self) -> int:
        return len(self.values)

    def tensors(self) -> Tree:
        """By name, for a message or a state."""
        named = {"features": self.features, "thresholds": self.thresholds, "values": self.values}
        return named if self.missing is None else named | {"missing": self.missing}

    @classmethod
    def of(cls, tensors: Tree) -> Trees:
        """From `tensors()`."""
        return cls(tensors["features"], tensors["thresholds"], tensors["values"], tensors.get("missing"))

    @staticmethod
    def form(
        trees: int | None, depth: int, outputs: int, columns: int, dtype: torch.dtype, missing: bool = False
    ) -> Form:
        """The form of `tensors()`; the number of trees may be left open."""
        nodes = (trees, 2**depth - 1)
        form = Form.of(
            features=(feature_type(columns), nodes),
            thresholds=(dtype, nodes),
            values=(dtype, (trees, 2**depth, outputs)),
        )
        return Form.of(**form, missing=(torch.bool, nodes)) if missing else form

    def check(self, columns: int) -> None:
        """Refuse trees that look at a column that there is not."""
        if self.features.numel() and not 0 <= int(self.features.min()) <= int(self.features.max()) < columns:
            raise InputError(f"a tree splits on a column that there is not; the inputs have {columns} columns.")

    def leaves(self, x: Tensor) -> NDArray[np.int32]:
        """The leaf that each row of x [n, columns] falls into, by tree: [T, n]."""
        result = np.empty((len(self), len(x)), dtype=np.int32)
        for rows, trees, leaf in self._walk(x):
            result[trees, rows] = leaf
        return result

    def sum(self, x: Tensor, coefficients: Tensor | Sequence[float] | None = None) -> Tensor:
        """sum_t c_t tree_t(x) in float64, [n, outputs], added in the trees' order; by default each c_t is 1.

        A row's sum does not depend on the rows beside it.
        """
        values = np.asarray(self.values.cpu(), dtype=np.float64)
        if coefficients is not None:
            values = values * np.asarray(coefficients, dtype=np.float64)[:, None, None]
        total = np.zeros((len(x), self.outputs))
        for rows, trees, leaves in self._walk(x):
            part = total[rows]
            for tree, leaf in zip(range(trees.start, trees.stop), leaves, strict=True):
                part += values[tree].take(leaf, axis=0)
        return torch.from_numpy(total)

    def below(self, x: Tensor, at: NDArray[Any], level: int) -> NDArray[np.int32]:
        """The leaves of rows that have come to the nodes `at` [T, n] of a level, counted from the left: [T, n]."""
        result = np.empty(at.shape, dtype=np.int32)
        for rows, trees, leaf in self._walk(x, at, level):
            result[trees, rows] = leaf
        return result

    def _walk(self, x: Tensor, at: NDArray[Any] | None = None, begin: int = 0) -> Any:
        """(rows, trees, leaves) of every block, the trees of each row in their order."""
        thresholds = self.thresholds.cpu().numpy()
        inputs = np.ascontiguousarray(x.detach().cpu().numpy().reshape(len(x), -1))
        if inputs.dtype.itemsize >= thresholds.dtype.itemsize:  # smaller ones are compared as they are
            inputs = inputs.astype(thresholds.dtype, copy=False)
        columns, nodes = inputs.shape[1], thresholds.shape[1]
        self.check(columns)
        features, limits = self.features.cpu().numpy().astype(np.int32).ravel(), thresholds.ravel()
        gaps = self.missing is not None and (begin > 0 or bool(np.isnan(inputs).any()))  # a look at all pays from afar
        missing = self.missing.cpu().numpy().ravel() if gaps and self.missing is not None else None
        height = _ROWS * max(1, _TREES // max(len(self), 1))
        for start in range(0, len(inputs), height):
            rows = slice(start, min(start + height, len(inputs)))
            flat, row = inputs[rows].ravel(), np.arange(rows.stop - start, dtype=np.int32) * columns
            for first in range(0, len(self), _TREES):
                trees = slice(first, min(first + _TREES, len(self)))
                root = np.arange(trees.start, trees.stop)[:, None] * nodes
                node = np.zeros((trees.stop - first, len(row)), np.int32) if at is None else at[trees, rows]
                for level in range(begin, self.depth):
                    here = node + (root + (2**level - 1))
                    value = flat.take(features.take(here) + row)
                    right = value > limits.take(here)
                    if missing is not None:
                        right |= np.isnan(value) & missing.take(here)
                    node = 2 * node + right
                yield rows, trees, node


def stacked(trees: Sequence[Trees]) -> Trees:
    """Trees of one depth as one stack."""
    depths = {each.depth for each in trees}
    if len(depths) != 1:
        raise InputError(f"only trees of one depth can be stacked, not of depths {sorted(depths)}.")
    missing = [each.missing for each in trees if each.missing is not None]
    if missing and len(missing) < len(trees):
        missing = [
            torch.zeros_like(each.features, dtype=torch.bool) if each.missing is None else each.missing
            for each in trees
        ]
    return Trees(
        torch.cat([each.features for each in trees]),
        torch.cat([each.thresholds for each in trees]),
        torch.cat([each.values for each in trees]),
        torch.cat(missing) if missing else None,
    )


def feature_type(columns: int) -> torch.dtype:
    """The dtype of features."""
    return torch.int16 if columns <= 2**15 else torch.int32


def check_depth(depth: int) -> None:
    if not 0 <= depth <= DEEPEST:
        raise InputError(f"trees may have a depth from 0 to {DEEPEST}, not {depth}.")


def complete(
    left: NDArray[Any],
    right: NDArray[Any],
    features: NDArray[Any],
    thresholds: NDArray[Any],
    values: NDArray[Any],
    depth: int,
    columns: int,
    dtype: torch.dtype = torch.float32,
    missing: NDArray[Any] | None = None,
) -> Trees:
    """One tree, given by the children of its nodes (-1 below a leaf), as a complete one.

    `values` [nodes, outputs]. Thresholds are rounded down, so that inputs of `dtype` fall where they did.
    """
    check_depth(depth)
    count = 2**depth - 1
    feature = np.zeros(count, dtype=np.int32)
    limit = np.full(count, torch.finfo(dtype).max, dtype=np.float64)
    turn = np.zeros(count, dtype=bool)
    source = np.zeros(2 ** (depth + 1) - 1, dtype=np.int64)  # the given node that each node stands for
    for node in range(count):
        original = source[node]
        if left[original] < 0:
            source[2 * node + 1] = source[2 * node + 2] = original
            continue
        feature[node], limit[node] = features[original], thresholds[original]
        turn[node] = missing is not None and missing[original]
        source[2 * node + 1], source[2 * node + 2] = left[original], right[original]
    if (left[source[count:]] >= 0).any():
        raise InputError(f"a tree is deeper than its declared depth, {depth}.")
    return Trees(
        torch.from_numpy(feature).to(feature_type(columns))[None],
        rounded_down(torch.from_numpy(limit), dtype)[None],
        torch.from_numpy(np.asarray(values[source[count:]], dtype=np.float64)).to(dtype)[None],
        None if missing is None else torch.from_numpy(turn)[None],
    )


def rounded_down(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest number of `dtype` that is not above the value."""
    near = values.to(dtype)
    low = torch.nextafter(near, torch.full_like(near, -torch.inf))
    return torch.where(near.to(values.dtype) > values, low, near)

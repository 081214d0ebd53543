"""Splits of nodes from the sums of their histograms (Chen & Guestrin, 2016).

A split into L and R gains

    1/2 [ G_L^2 / (H_L + lambda) + G_R^2 / (H_R + lambda) - G^2 / (H + lambda) ],   leaves give  -G / (H + lambda).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.algorithms.trees.histograms import FINE, Floats, Whole

_TINY = 1e-12


@dataclass(frozen=True)
class Rules:
    """What a split must satisfy."""

    l2: float
    min_leaf: int
    min_hessian: float
    min_gain: float
    signs: NDArray[np.int8] | None = None
    """By column: +1 rising, -1 falling, 0 free."""

    def value(self, g: Floats, h: Floats, low: Floats, high: Floats) -> Floats:
        """What a leaf gives, before the step size."""
        best: Floats = -g / self._curvature(h)
        return best if self.signs is None else np.clip(best, low, high)

    def score(self, g: Floats, h: Floats, value: Floats | None = None) -> Floats:
        """By how much a leaf with this value, by default the best, lowers the loss."""
        if value is None:
            best: Floats = g * g / self._curvature(h)
            best *= 0.5
            return best
        return -value * (g + (h + self.l2) / 2 * value)

    def _curvature(self, h: Floats) -> Floats:
        """H + lambda; where there is none nothing is gained, as if it were infinite."""
        total = h + self.l2
        total[total <= _TINY] = np.inf
        return total


@dataclass(frozen=True)
class Splits:
    """The best split of each of some nodes, [nodes] each; `gain` is 0 where a node is a leaf."""

    gain: Floats
    column: Whole
    bin: Whole
    missing_right: NDArray[np.bool_]
    left: Floats
    """[nodes, 3]: G, H and rows."""
    right: Floats


def best_splits(sums: Floats, rules: Rules, low: Floats, high: Floats) -> Splits:
    """From G, H and counts [3, nodes, columns, bins], the last bin that of missing values.

    Of equal gains the lowest column wins, then the lowest bin, then missing values to the right. `low`, `high`: the
    values that each node may give.
    """
    nodes, columns, bins = sums.shape[1], sums.shape[2], sums.shape[3] - 1
    gaps = sums[..., -1:]
    total = sums[:, :, 0].sum(axis=-1)
    left = np.cumsum(sums[..., :-1], axis=-1)
    ways = 2 if gaps.any() else 1
    if ways == 2:
        left = np.stack([left, left + gaps], axis=-1)
    left = left.reshape(3, nodes, columns, bins, ways)
    right = total[:, :, None, None, None] - left
    allowed = np.minimum(left[2], right[2]) >= max(rules.min_leaf, 1)
    allowed &= np.minimum(left[1], right[1]) >= rules.min_hessian
    if rules.signs is None:
        scores, parent = (rules.score(side[0], side[1]) for side in (left, right)), rules.score(total[0], total[1])
    else:
        ends = [limit[:, None, None, None] for limit in (low, high)]
        values = [rules.value(side[0], side[1], *ends) for side in (left, right)]
        allowed &= rules.signs[:, None, None] * (values[1] - values[0]) >= 0
        scores = (rules.score(side[0], side[1], value) for side, value in zip((left, right), values, strict=True))
        parent = rules.score(total[0], total[1], rules.value(total[0], total[1], low, high))
    reached = next(scores)
    reached += next(scores)
    reached[~allowed] = -np.inf
    flat = reached.reshape(nodes, -1)
    best = flat.argmax(axis=1) if flat.shape[1] else np.zeros(nodes, np.int64)
    each = np.arange(nodes)
    gain = flat[each, best] - parent
    gains = np.where(gain > rules.min_gain, gain, 0.0)
    column, bin, way = np.unravel_index(best, (columns, bins, ways))
    lefts = left[:, each, column, bin, way].T
    rights = right[:, each, column, bin, way].T
    none_missing = gaps[2, each, column, 0] == 0
    goes_right = np.where(none_missing, rights[:, 2] > lefts[:, 2], way == 0)
    return Splits(gains, column, bin, goes_right, lefts, rights)


def leaf_values(values: Floats, unit: float) -> Floats:
    """Values with so few digits that no sum of them is rounded."""
    return np.rint(values / unit * FINE) / FINE * unit

"""Gradient histograms and the splits they lead to: second-order boosting (Friedman, 2001; Chen & Guestrin, 2016).

Of every node, column and bin a histogram has the sums G = sum_j g_j and H = sum_j h_j over the rows there, and how many
they are. A split into L and R gains

    1/2 [ G_L^2 / (H_L + lambda) + G_R^2 / (H_R + lambda) - G^2 / (H + lambda) ],   leaves give  -G / (H + lambda).

g_j and h_j are rounded to multiples of 2^-24 (times a unit) and added as 64-bit integers: no order of the rows, and no
way of dealing them to clients, changes a bit of a sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csc_array
from torch import Tensor

from parley.core.errors import InputError

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Codes = NDArray[np.uint8]
"""Bins of rows, [n, columns]; missing values have the number of bins."""
Nodes = NDArray[np.int16]
"""The node of each row, -1 in leaves."""
Objective = Literal["squares", "logistic", "softmax"]
SCALE = 2.0**24
"""Steps of the fixed-point numbers in a unit."""
_FINE = 2.0**36
"""Steps of leaf values in a unit: so few digits that sums of leaf values are exact, in any order."""
_RUNAWAY = 2.0**8
"""Gradients beyond so many units mean that training has diverged."""
_TINY = 1e-12


def first_values(objective: Objective, totals: Whole, rows: int, unit: float) -> Floats:
    """What is predicted before the first tree, [outputs]: the mean, the log-odds or the logarithms of the shares.

    `totals`: sums of the (fixed-point) targets, or how many rows each class has.
    """
    if objective == "squares":
        return np.rint(totals * unit / SCALE / max(rows, 1) / unit * _FINE) / _FINE * unit
    share = np.clip(totals / max(rows, 1), 1e-6, 1 - 1e-6)
    logits = np.log(share[1:] / share[:1]) if objective == "logistic" else np.log(share)
    return np.rint(logits * _FINE) / _FINE


def fixed(values: Floats, unit: float = 1.0) -> Whole:
    """Whole steps of 2^-24 units."""
    if values.size and not np.abs(values).max() <= _RUNAWAY * unit:
        raise InputError("has gradients far beyond its targets: boosting diverged; lower lr.")
    return np.rint(values * (SCALE / unit)).astype(np.int64)


def statistics(objective: Objective, raw: Floats, y: Floats | Whole, unit: float) -> tuple[Whole, float]:
    """What the histograms add up, of each output and row the fixed-point g, h and 1, [outputs, n, 3]; and the loss.

    Squares have h = 1 and leave it out: [outputs, n, 2]. Every row is computed by itself: `raw` [outputs, n].
    """
    one = np.ones(raw.shape, np.int64)
    if objective == "squares":
        g = raw - y.reshape(len(raw[0]), -1).T
        return np.stack([fixed(g, unit), one], axis=-1), float(np.square(g).sum(axis=0).mean() / 2)
    if objective == "logistic":
        p = 1 / (1 + np.exp(-raw))
        hit = y[None] == 1
        true = np.where(hit, p, 1 - p)
    else:
        e = np.exp(raw - raw.max(axis=0))
        total = e[0].copy()
        for own in e[1:]:  # class after class: the order of a pairwise sum could depend on how many rows there are
            total += own
        p = e / total
        hit = y == np.arange(len(raw))[:, None]
        true = p[y.astype(np.int64), np.arange(p.shape[1])]
    loss = -float(np.log(np.maximum(true, _TINY)).mean())
    return np.stack([fixed(p - hit), fixed(p * (1 - p)), one], axis=-1), loss


def histogram(codes: Codes, slots: NDArray[np.integer[Any]], values: Whole, nodes: int, bins: int) -> Whole:
    """Sums of `values` [n, statistics] by node, column and bin: [nodes, columns, bins, statistics].

    `codes` [n, columns] are bins, `slots` [n] the node of each row; a negative one leaves it out.
    """
    if nodes == 0 or len(slots) == 0:
        return np.zeros((nodes, codes.shape[1], bins, values.shape[1]), np.int64)
    if slots.min() < 0:
        rows: Whole = np.flatnonzero(slots >= 0)
        codes, slots, values = codes.take(rows, axis=0), slots.take(rows), values.take(rows, axis=0)
    n, columns = codes.shape
    place = codes.astype(np.int32)
    place += np.arange(columns, dtype=np.int32) * bins
    if nodes > 1:
        place += (slots.astype(np.int32) * (columns * bins))[:, None]
    # Column j of this matrix has a one at each bin of row j: its product with the values adds them up in one pass.
    starts = np.arange(n + 1, dtype=np.int32) * columns
    sums: Any = csc_array((_ones(n * columns), place.ravel(), starts), shape=(nodes * columns * bins, n)) @ values
    found: Whole = sums.reshape(nodes, columns, bins, values.shape[1])
    return found


def node_histograms(codes: Codes, rows: Nodes, values: Whole, nodes: Whole, bins: int) -> Whole:
    """Histograms of the nodes asked for, [nodes, columns, bins, statistics].

    `rows` [outputs, n]: the node each row is in, by tree; `values` [outputs, n, statistics]; `nodes` [nodes, 2]: tree
    and number, in the order of the trees.
    """
    parts = []
    for tree, own in enumerate(rows):
        asked = nodes[nodes[:, 0] == tree, 1]
        slots = np.full(max(own.max(initial=0), asked.max(initial=0)) + 2, -1, np.int16)
        slots[asked] = np.arange(len(asked))  # the last entry is that of rows in leaves, numbered -1
        parts.append(histogram(codes, slots.take(own), values[tree], len(asked), bins))
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def real_steps(count: int) -> Tensor:
    """What turns whole statistics into real ones, in units: [statistics]."""
    return torch.tensor([1 / SCALE] * (count - 1) + [1.0], dtype=torch.float64)


def below(rows: Nodes, codes: Codes, splits: Whole, bins: int) -> Nodes:
    """Each row's node after these splits (number, column, bin, missing right); -1 in leaves."""
    count = max(int(rows.max(initial=0)), int(splits[:, 0].max(initial=0))) + 2
    column, limit, left = np.zeros(count, np.int32), np.zeros(count, np.uint8), np.full(count, -1, np.int16)
    gaps = np.zeros(count, np.bool_)
    node: Whole = splits[:, 0]
    column[node], limit[node], gaps[node], left[node] = splits[:, 1], splits[:, 2], splits[:, 3] == 1, 2 * node
    code = codes.ravel().take(column.take(rows) + np.arange(len(rows)) * codes.shape[1])
    right = code > limit.take(rows)
    missing = code == bins
    if missing.any():
        right[missing] = gaps[rows[missing]]
    below = left.take(rows)
    below[right & (below >= 0)] += 1
    return below


def _ones(count: int) -> Whole:
    return _many_ones(1 << (count - 1).bit_length() if count > 1 else 1)[:count]


@lru_cache(maxsize=2)
def _many_ones(count: int) -> Whole:
    ones = np.ones(count, np.int64)
    ones.flags.writeable = False
    return ones


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
        best = np.divide(-g, h + self.l2, out=np.zeros_like(g), where=h + self.l2 > _TINY)
        return best if self.signs is None else np.clip(best, low, high)

    def score(self, g: Floats, h: Floats, value: Floats) -> Floats:
        """By how much a leaf with this value lowers the loss."""
        return -value * (g + (h + self.l2) / 2 * value)


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
    whole = total[:, :, None, None, None]
    right = whole - left
    ends = [limit[:, None, None, None] for limit in (low, high)]
    values = [rules.value(side[0], side[1], *ends) for side in (left, right)]
    parent = rules.score(whole[0], whole[1], rules.value(whole[0], whole[1], *ends))
    gain = rules.score(left[0], left[1], values[0]) + rules.score(right[0], right[1], values[1]) - parent
    allowed = np.minimum(left[2], right[2]) >= max(rules.min_leaf, 1)
    allowed &= np.minimum(left[1], right[1]) >= rules.min_hessian
    if rules.signs is not None:
        allowed &= rules.signs[:, None, None] * (values[1] - values[0]) >= 0
    gain[~allowed] = -np.inf
    flat = gain.reshape(nodes, -1)
    best = flat.argmax(axis=1) if flat.shape[1] else np.zeros(nodes, np.int64)
    each = np.arange(nodes)
    found = np.where(flat[each, best] > rules.min_gain, flat[each, best], 0.0)
    column, bin, way = np.unravel_index(best, (columns, bins, ways))
    lefts = left[:, each, column, bin, way].T
    rights = right[:, each, column, bin, way].T
    none_missing = gaps[2, each, column, 0] == 0
    goes_right = np.where(none_missing, rights[:, 2] > lefts[:, 2], way == 0)
    return Splits(found, column, bin, goes_right, lefts, rights)


def leaf_values(values: Floats, unit: float) -> Floats:
    """Values with so few digits that no sum of them is rounded."""
    return np.rint(values / unit * _FINE) / _FINE * unit


def row_numbers(x: Floats, y: Floats | Whole) -> NDArray[np.uint64]:
    """A number that follows from a row's values alone, whoever has it and wherever it stands: [n]. Equal rows share
    theirs."""
    table = np.concatenate([x, np.asarray(y, np.float64).reshape(len(x), -1)], axis=1) + 0.0
    table[np.isnan(table)] = np.nan
    number = np.zeros(len(x), np.uint64)
    for column in np.ascontiguousarray(table.T).view(np.uint64):
        number = _mixed(number ^ column)
    return number


def chosen_rows(numbers: NDArray[np.uint64], seed: int, share: float) -> NDArray[np.bool_]:
    """Which rows a tree is grown on, each with the chance `share`."""
    return (_mixed(numbers ^ np.uint64(seed)) >> np.uint64(11)) < np.uint64(round(share * 2**53))


def _mixed(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spreads every bit over all of them (SplitMix64)."""
    with np.errstate(over="ignore"):
        number = number + np.uint64(0x9E3779B97F4A7C15)
        number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return number ^ (number >> np.uint64(31))

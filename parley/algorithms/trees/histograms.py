"""Gradient histograms of second-order boosting (Friedman, 2001; Chen & Guestrin, 2016).

Of every node, column and bin a histogram has the sums G = sum_j g_j and H = sum_j h_j over the rows there, and how many
they are; `trees.splits` has what follows from them.

g_j and h_j are rounded to multiples of 2^-24 (times a unit) and added as 64-bit integers: no order of the rows, and no
way of dealing them to clients, changes a bit of a sum.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array
from torch import Tensor

from parley.core.errors import InputError
from parley.core.tree import Tree

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Codes = NDArray[np.uint8]
"""Bins of rows, [n, columns]; missing values have the number of bins."""
Nodes = NDArray[np.int16]
"""The node of a level that each row is in, by tree, [outputs, n]; from 0 on the left."""
Flags = NDArray[np.bool_]
Objective = Literal["squares", "logistic", "softmax"]
SCALE = 2.0**24
"""Steps of the fixed-point numbers in a unit."""
FINE = 2.0**36
"""Steps of leaf values in a unit: so few digits that sums of leaf values are exact, in any order."""
_RUNAWAY = 2.0**8
"""Gradients beyond so many units mean that training has diverged."""
_TINY = 1e-12
_AT_ONCE = 2**22
"""Entries of rows that are added up in one product, which bounds what it needs of memory."""


def first_values(objective: Objective, totals: Whole, rows: int, unit: float, middle: Floats | float = 0.0) -> Floats:
    """What is predicted before the first tree, [outputs]: the mean, the log-odds or the logarithms of the shares.

    `totals`: sums of the (fixed-point) targets minus their `middle`, or how many rows each class has.
    """
    if objective == "squares":
        return np.asarray(np.rint((middle / unit + totals / SCALE / max(rows, 1)) * FINE) / FINE * unit)
    share = np.clip(totals / max(rows, 1), 1e-6, 1 - 1e-6)
    logits = np.log(share[1:] / share[:1]) if objective == "logistic" else np.log(share)
    return np.rint(logits * FINE) / FINE


def fixed(values: Floats, unit: float = 1.0) -> Whole:
    """Whole steps of 2^-24 units."""
    if values.size and not np.abs(values).max() <= _RUNAWAY * unit:
        raise InputError("has gradients far beyond its targets: boosting diverged; lower lr.")
    return np.rint(values * (SCALE / unit)).astype(np.int64)


def statistics(objective: Objective, raw: Floats, y: Floats | Whole, unit: float) -> tuple[Whole, float]:
    """What the histograms add up, of each output and row the fixed-point g, h and 1, [outputs, n, 3]; and the loss.

    Squares have h = 1 and leave it out: [outputs, n, 2]. Every row is computed by itself: `raw` [outputs, n].
    """
    ones = np.ones(raw.shape, np.int64)
    if objective == "squares":
        g = raw - y.reshape(len(raw[0]), -1).T
        return np.stack([fixed(g, unit), ones], axis=-1), float(np.square(g).sum(axis=0).mean() / 2)
    if objective == "logistic":
        p = 1 / (1 + np.exp(-raw))
        hit = y[None] == 1
        true = np.where(hit, p, 1 - p)
    else:
        e = np.exp(raw - raw.max(axis=0))
        total = e[0].copy()
        for class_e in e[1:]:  # class after class: the order of a pairwise sum could depend on how many rows there are
            total += class_e
        p = e / total
        hit = y == np.arange(len(raw))[:, None]
        true = p[y.astype(np.int64), np.arange(p.shape[1])]
    loss = -float(np.log(np.maximum(true, _TINY)).mean())
    return np.stack([fixed(p - hit), fixed(p * (1 - p)), ones], axis=-1), loss


def histogram(codes: Codes, slots: NDArray[np.integer[Any]], values: Whole, nodes: int, bins: int) -> Whole:
    """Sums of `values` [n, statistics] by node, column and bin: [nodes, columns, bins, statistics].

    `codes` [n, columns] are bins, `slots` [n] the node of each row; a negative one leaves it out.
    """
    return _summed(codes, None, slots, values, nodes, bins)


def node_histograms(
    codes: Codes, rows: Nodes, values: Whole, nodes: Whole, bins: int, width: int, chosen: Flags | None = None
) -> Whole:
    """Histograms of the nodes asked for, [nodes, columns, bins, statistics].

    `rows` [outputs, n]: where each row is, by tree, among the `width` nodes of a level; `values` [outputs, n,
    statistics]; `nodes` [nodes, 2]: tree and number; `chosen` [n]: rows that count.
    """
    outputs, n = rows.shape
    table = np.full(outputs * width, -1, np.int32)
    table[nodes[:, 0] * width + nodes[:, 1]] = np.arange(len(nodes))
    slots = table.take(_by_tree(rows, width))
    if chosen is not None:
        slots[:, ~chosen] = -1
    source = None if outputs == 1 else np.tile(np.arange(n), outputs)
    return _summed(codes, source, slots.ravel(), values.reshape(outputs * n, -1), len(nodes), bins)


def _summed(
    codes: Codes, source: Whole | None, slots: NDArray[np.integer[Any]], values: Whole, nodes: int, bins: int
) -> Whole:
    """`histogram` of entries whose bins are those of the row `source`, or of the row of the same number."""
    columns, size = codes.shape[1], nodes * codes.shape[1] * bins
    active = np.flatnonzero(slots >= 0)
    shift = np.arange(columns, dtype=np.int32) * bins
    most = max(1, max(_AT_ONCE, 6 * size) // columns)
    total: Whole | None = None
    for begin in range(0, len(active), most):
        part = active[begin : begin + most]
        cells = codes.take(part if source is None else source.take(part), axis=0) + shift
        if nodes > 1:
            cells += (slots.take(part).astype(np.int32, copy=False) * np.int32(columns * bins))[:, None]
        # Column j of this matrix has a one at each bin of row j: its product with the values adds them up in one pass.
        starts = np.arange(len(part) + 1, dtype=np.int32) * columns
        ones = csc_array((_ones(cells.size), cells.ravel(), starts), shape=(size, len(part)))
        sums: Any = ones @ values.take(part, axis=0)
        total = sums if total is None else total + sums
    shape = (nodes, columns, bins, values.shape[1])
    return np.zeros(shape, np.int64) if total is None else total.reshape(shape)


def statistic_names(objective: Objective) -> tuple[str, ...]:
    """What is added up of every row."""
    return ("gradients", "counts") if objective == "squares" else ("gradients", "hessians", "counts")


def real_sums(sums: Tensor) -> Tree:
    """Whole sums [nodes, columns, bins, statistics] as real ones, in units, each statistic by itself: their sizes
    differ, so what rounds them (quantisation) must not round all alike."""
    *fixed_point, counts = sums.double().unbind(-1)
    parts = [*(part / SCALE for part in fixed_point), counts.contiguous()]
    return dict(zip(statistic_names("squares" if len(parts) == 2 else "softmax"), parts, strict=True))


def below(rows: Nodes, codes: Codes, splits: Whole, bins: int, width: int) -> Nodes:
    """Where each row is a level further down, after these splits (tree, number, column, bin, missing right).

    Rows of a node that was not split go left, so that their leaf of the complete tree is found in the end.
    """
    nodes = len(rows) * width
    column, limit, gaps = np.zeros(nodes, np.int64), np.full(nodes, 255, np.uint8), np.zeros(nodes, np.bool_)
    node = splits[:, 0] * width + splits[:, 1]
    column[node], limit[node], gaps[node] = splits[:, 2], splits[:, 3], splits[:, 4] == 1
    at = _by_tree(rows, width)
    code = codes.ravel().take(column.take(at) + np.arange(0, codes.size, codes.shape[1]))
    right = code > limit.take(at)
    missing = code == bins
    if missing.any():
        right[missing] = gaps.take(at[missing])
    return 2 * rows + right


def _by_tree(rows: Nodes, width: int) -> Whole:
    """Numbers that tell the nodes of all trees apart."""
    return rows.astype(np.int64) + np.arange(0, len(rows) * width, width)[:, None]


def _ones(count: int) -> Whole:
    return _many_ones(1 << (count - 1).bit_length() if count > 1 else 1)[:count]


@lru_cache(maxsize=2)
def _many_ones(count: int) -> Whole:
    ones = np.ones(count, np.int64)
    ones.flags.writeable = False
    return ones


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

"""What leaves a client of counts and of sorted values: nothing that fewer than a least number stand behind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from parley.learn.binning import LARGEST, Counts, Floats

_WIDTH = 3.0
"""Standard deviations on both sides of the mean that cells divide."""


def above_floor(counts: Counts, least: int, among: Sequence[NDArray[np.bool_]] | None = None) -> Counts:
    """Each row's counts, those with too few samples behind them as 0; so are the next ones until too few are no longer
    behind all that is left out: whoever knows the sum of a row learns nothing about few from the difference.

    `among`: for each row, which samples [samples, cells] are behind a count; without it, each counts one.
    """
    kept = counts.copy()
    for number, row in enumerate(kept):
        there = None if among is None else among[number]
        behind = row if there is None else there.sum(axis=0)
        order = np.argsort(behind, kind="stable")
        order = order[row[order] > 0]
        out = int((behind[order] < least).sum())
        while 0 < out < len(order) and _together(order[:out], row, there) < least:
            out += 1
        row[order[:out]] = 0
    return kept


def _together(cells: Counts, row: Counts, there: NDArray[np.bool_] | None) -> int:
    return int(row[cells].sum() if there is None else there[:, cells].any(axis=1).sum())


def cell_edges(means: Floats, deviations: Floats, bins: int) -> Floats:
    """Upper edges of equal cells about the mean, [features, bins + 1]; values beyond have a cell on each side."""
    most = LARGEST / 8
    low, high = (np.clip(means + side * _WIDTH * deviations, -most, most) for side in (-1, 1))
    return np.linspace(low, high, bins + 1, axis=1)


def block_means(values: Floats, blocks: int, least: int) -> tuple[Floats, Counts]:
    """Means of neighbouring values of each row and how many each is of, [rows, blocks]: at least `least`, or none.

    NaN is left out. A mean lies between the values it is of, so for any t the number of values up to t is that of the
    means up to t, each counted as often as it says, but for one mean: less than the largest block.
    """
    means, weights = np.zeros((len(values), blocks)), np.zeros((len(values), blocks), np.int64)
    for row, mean, weight in zip(values, means, weights, strict=True):
        own = np.sort(row[~np.isnan(row)])
        parts = min(blocks, len(own) // max(least, 1))
        if parts == 0:
            continue
        cuts = len(own) * np.arange(parts + 1) // parts
        weight[:parts] = np.diff(cuts)
        sums = np.add.reduceat(own / np.repeat(weight[:parts], weight[:parts]), cuts[:-1])
        mean[:parts] = np.clip(sums, own[cuts[:-1]], own[cuts[1:] - 1])
    return means, weights


def block_quantiles(means: Floats, weights: Counts, shares: Sequence[float]) -> Floats:
    """Quantiles of one feature from all clients' blocks."""
    order = np.argsort(means[weights > 0], kind="stable")
    values, through = means[weights > 0][order], np.cumsum(weights[weights > 0][order])
    if len(values) == 0:
        return np.zeros(len(shares))
    wanted = np.ceil(np.asarray(shares) * through[-1])
    return np.asarray(values[np.minimum(np.searchsorted(through, wanted), len(values) - 1)])


def cell_quantiles(edges: Floats, counts: Counts, shares: Sequence[float]) -> Floats:
    """Quantiles of one feature from counts in cells: linear within a cell, the only edge of an outer one."""
    through = np.cumsum(counts)
    if through[-1] == 0:
        return np.zeros(len(shares))
    ends = np.concatenate([edges[:1], edges, edges[-1:]])
    found = []
    for share in shares:
        wanted = share * float(through[-1])
        cell = int(np.searchsorted(through, max(wanted, 0.5)))  # the first one that has a value, if not a later one
        inside = (wanted - through[cell]) / counts[cell] + 1
        found.append(ends[cell] + inside * (ends[cell + 1] - ends[cell]))
    return np.array(found)

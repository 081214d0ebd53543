"""Bins of numeric columns from counts alone: what clients tell of their values is how many lie in each cell.

    cells     the number line by quarters of octaves between 2^-40 and 2^40 and by eight octaves beyond, or a public
              range in equal parts
    refined   occupied cells in parts, counted again, and so on until no cell has more than a bin's share of the values,
              or it has a single number: however narrow a column is beside its offset, its bins are filled
    edges     quantiles of the last counts; where there are few occupied cells, one bin for each

Counts of all clients are added before anybody looks at them, so the bins do not depend on who has which rows. A value
falls into the first bin whose edge is not below it; what is missing (NaN) has a bin of its own behind the others.

Cells are cut in equal parts of the numbers that float64 has: between two powers of two those are equally far apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]
MOST_BINS = 255
"""With the bin of missing values, codes are bytes."""
LARGEST = float(np.finfo(np.float64).max)
"""The edge of a column's last bin: nothing lies above it."""
_OCTAVES, _QUARTERS, _BEYOND, _REFINED = 40, 4, 8, 2048
_LEAST_PARTS = 16
"""Of a cell that is cut again, however many there are."""
_UNIT_BITS = 16
"""A target is at most 2^16 units: with leaf values of 2^-36 units and more, sums have 53 bits (`histograms.FINE`)."""
_LARGEST_TARGET = 1e140
Rule = Callable[[Floats, Floats, Counts], Mask]
"""Which cells of a column to cut, from their lower and upper ends and counts."""


def number_line() -> Floats:
    """Upper edges of the first cells of any column, [cells - 1]; the last cell has none."""
    middle = np.ldexp(1 + np.arange(_QUARTERS) / _QUARTERS, np.arange(-_OCTAVES, _OCTAVES)[:, None]).ravel()
    beyond = [np.ldexp(1.0, np.arange(*ends, _BEYOND)) for ends in ((-1072, -_OCTAVES), (_OCTAVES, 1024))]
    positive = np.concatenate([beyond[0], middle, beyond[1]])
    return np.concatenate([-positive[::-1], [0.0], positive])


def most_cells(bins: int) -> int:
    """Edges of a column in one exchange beyond which no honest search for so many bins goes."""
    return 4 * _REFINED + 2 * _LEAST_PARTS * bins


def range_cells(ranges: Sequence[tuple[float, float]]) -> Floats:
    """Edges of equal cells of public ranges, [columns, cells - 1]; values outside count in the first and last."""
    return np.stack([np.linspace(low, high, _REFINED + 1)[1:-1] for low, high in ranges])


def check_ranges(ranges: Any, columns: int | None = None) -> tuple[tuple[float, float], ...]:
    """Pairs (low, high), one for all columns or one for each; refuses what is none."""
    try:
        pairs = np.asarray(ranges, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"ranges must be pairs of numbers, low and high, not {ranges!r}.") from None
    pairs = pairs[None] if pairs.shape == (2,) else pairs
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
        raise InputError(f"ranges must be one pair (low, high) for all columns or one pair for each, not {ranges!r}.")
    for column, (low, high) in enumerate(pairs.tolist()):
        if not (np.isfinite(low) and np.isfinite(high) and low < high):
            raise InputError(f"the range of column {column} is {low:g} to {high:g}; low must be below high.")
    if columns is not None and len(pairs) not in (1, columns):
        raise InputError(f"there are {len(pairs)} ranges but {columns} columns; give one for all or one for each.")
    pairs = np.broadcast_to(pairs, (columns or len(pairs), 2))
    return tuple((low, high) for low, high in pairs.tolist())


def counts(x: Floats, cells: Floats) -> Counts:
    """How many values of each column lie in each cell, the last being of missing ones: [columns, cells + 1].

    `cells`: upper edges, [cells - 1] for all columns or [columns, cells - 1].
    """
    result = np.zeros((x.shape[1], cells.shape[-1] + 2), np.int64)
    for column, column_counts in enumerate(result):
        values = np.sort(x[:, column])  # missing ones come last
        column_counts[-1] = np.isnan(values).sum()
        ends = np.searchsorted(values, cells if cells.ndim == 1 else cells[column], side="right")
        column_counts[:-1] = np.diff(ends, prepend=0, append=len(values) - column_counts[-1])
    return result


class Refinement:
    """Cells of some columns that are cut, exchange by exchange, until a rule finds none to cut."""

    def __init__(self, cells: Floats, columns: int, rule: Rule, coarse: bool) -> None:
        """`cells`: upper edges, for all columns or each; if they are `coarse`, all that are occupied are cut once."""
        self.limits = list(np.broadcast_to(cells, (columns, cells.shape[-1])))
        self.counted = [np.zeros(cells.shape[-1] + 1, np.int64) for _ in range(columns)]
        self.open = np.arange(columns)
        """The columns to be counted next."""
        self._rule, self._coarse = rule, coarse

    def cells(self) -> Floats:
        """Upper edges of the cells to be counted, [open columns, cells - 1], padded."""
        return _padded([self.limits[column] for column in self.open])

    def take(self, counted: Counts) -> None:
        """All clients' `counts` in these cells."""
        rest = []
        for column, row in zip(self.open, counted, strict=True):
            limits = self.limits[column]
            column_counts = self.counted[column] = np.maximum(row[: len(limits) + 1], 0)
            low, high = _ends(limits)
            cut = (column_counts > 0) if self._coarse else self._rule(low, high, column_counts)
            cut &= _numbers(low, high) > 1
            if cut.any():
                self.limits[column] = _cut(low, high, column_counts, cut, self._coarse)
                rest.append(column)
        self.open, self._coarse = np.array(rest, np.int64), False

    def edges(self, bins: int) -> Floats:
        """Upper edges of each column's bins, [columns, bins], padded with the largest number."""
        return _padded([_edges(*each, bins) for each in zip(self.limits, self.counted, strict=True)], bins)

    def bounds(self) -> tuple[Floats, Floats]:
        """Numbers that no value of each column is below or above; 0 where there are no values."""
        result = np.zeros((2, len(self.limits)))
        for column, (limits, column_counts) in enumerate(zip(self.limits, self.counted, strict=True)):
            if len(used := np.flatnonzero(column_counts)):
                low, high = _ends(limits)
                result[:, column] = max(low[used[0]], -LARGEST), high[used[-1]]
        return result[0], result[1]


def filling(bins: int) -> Rule:
    """For bins: cells with more than a bin's share; with any two values as long as there are fewer cells than bins."""

    def rule(low: Floats, high: Floats, counted: Counts) -> Mask:
        few = np.count_nonzero(counted) < bins
        return counted > (1 if few else max(counted.sum() // bins, 1))

    return rule


def bounding(low: Floats, high: Floats, counted: Counts) -> Mask:
    """For bounds: the first and the last occupied cell while they are wide beside what lies between them."""
    cut = np.zeros(len(counted), np.bool_)
    if len(used := np.flatnonzero(counted)):
        first, last, low = used[0], used[-1], np.maximum(low, -LARGEST)
        width, between = high[last] / 2 - low[first] / 2, max(low[last] / 2 - high[first] / 2, 0.0)
        largest = max(abs(low[first]), abs(high[last])) / 2
        cut[[first, last]] = width > max(2 * between, largest * 2.0**-_UNIT_BITS)
    return cut


def unit_of(low: Floats, high: Floats) -> tuple[Floats, float]:
    """The middle of each target's bounds, and a power of two that none is further from its middle than."""
    largest = np.maximum(abs(low), abs(high)).max()
    if largest > _LARGEST_TARGET:
        raise InputError(f"the targets reach {largest:.3g}, and their squares exceed float64; divide them.")
    middle, half = (low + high) / 2, (high - low) / 2
    bound = max(half.max(), largest * 2.0**-_UNIT_BITS, 1 / _LARGEST_TARGET)
    return middle, float(2.0 ** np.ceil(np.log2(bound)))


def codes(x: Floats, edges: Floats) -> NDArray[np.uint8]:
    """The bin of every value, [n, columns]; missing ones have the number `bins`."""
    bins = edges.shape[1]
    result = np.empty(x.shape, np.uint8)
    for column in range(x.shape[1]):
        result[:, column] = np.searchsorted(edges[column, :-1], x[:, column])
    result[np.isnan(x)] = bins
    return result


def merged(codes: NDArray[Any], bins: int, least: int) -> NDArray[Any]:
    """The codes of each column with those of fewer than so many rows joined to their neighbours'."""
    if least < 2:
        return codes
    whole = np.empty_like(codes)
    for column in range(codes.shape[1]):
        many = np.bincount(codes[:, column], minlength=bins + 1)
        groups: list[list[int]] = [[]]
        for code in np.flatnonzero(many):
            if many[groups[-1]].sum() >= least:
                groups.append([])
            groups[-1].append(int(code))
        if len(groups) > 1 and many[groups[-1]].sum() < least:
            last = groups.pop()
            groups[-1] += last
        table = np.zeros(bins + 1, codes.dtype)
        for group in groups:
            table[group] = group[int(many[group].argmax())] if group else 0
        whole[:, column] = table[codes[:, column]]
    return whole


def above_floor(counts: Counts, least: int, among: Sequence[NDArray[np.bool_]] | None = None) -> Counts:
    """Each row's counts, those with too few samples behind them as 0; so are the next ones until too few are no longer
    behind all that is left out: whoever knows the sum of a row learns nothing about few from the difference.

    `among`: for each row, which samples [samples, cells] are behind a count; without it, each counts one.
    """
    kept = counts.copy()
    for number, row in enumerate(kept):
        members = None if among is None else among[number]
        behind = row if members is None else members.sum(axis=0)
        order = np.argsort(behind, kind="stable")
        order = order[row[order] > 0]
        out = int((behind[order] < least).sum())
        while 0 < out < len(order) and _together(order[:out], row, members) < least:
            out += 1
        row[order[:out]] = 0
    return kept


def _together(cells: Counts, row: Counts, members: NDArray[np.bool_] | None) -> int:
    return int(row[cells].sum() if members is None else members[:, cells].any(axis=1).sum())


def leave(low: Floats, high: Floats, counted: Counts) -> Mask:
    """For cells that are counted once."""
    return np.zeros(len(counted), np.bool_)


def _edges(limits: Floats, counted: Counts, bins: int) -> Floats:
    """Between bins, from a column's counts."""
    occupied = np.flatnonzero(counted)
    through = np.cumsum(counted[occupied])
    if len(occupied) <= bins:
        cuts = np.arange(len(occupied) - 1)
    else:
        wanted = through[-1] * np.arange(1, bins) / bins
        cuts = np.unique(np.searchsorted(through, wanted))
        cuts = cuts[cuts < len(occupied) - 1]
    # In the middle of the gap between two occupied cells; their common edge where there is none.
    below = limits[np.minimum(occupied[cuts], len(limits) - 1)]
    above = limits[np.maximum(occupied[cuts + 1] - 1, 0)] if len(cuts) else below
    return np.unique(below + (above / 2 - below / 2))


def _cut(low: Floats, high: Floats, counted: Counts, cut: Mask, by_share: bool) -> Floats:
    """Upper edges after some cells were cut; empty ones are joined.

    Parts end at numbers of few digits, which are cells by themselves: whole numbers need no search.
    """
    share = counted[cut] / counted[cut].sum() if by_share else 1 / cut.sum()
    parts = np.maximum(_REFINED / 2 * share, 2 if by_share else _LEAST_PARTS)
    step = np.int64(1) << np.ceil(np.log2(np.maximum(_numbers(low[cut], high[cut]) / parts, 1))).astype(np.int64)
    before, last = _keys(low[cut]) // step, (_keys(high[cut]) - 1) // step
    of = np.repeat(np.arange(len(step)), last - before)
    ends = step[of] * (np.arange(1, len(of) + 1) - (np.cumsum(last - before) - (last - before) - before)[of])
    kept = (counted > 0) & ~cut
    ends = np.concatenate([ends, _keys(high[cut])])
    keys = np.unique(np.concatenate([ends, ends - 1, _keys(low[cut]), _keys(low[kept]), _keys(high[kept])]))
    return _values(keys[keys > _keys(np.array(-np.inf))])


def _ends(limits: Floats) -> tuple[Floats, Floats]:
    """The lower and the upper end of each cell; values are above the one and not above the other."""
    return np.concatenate([[-np.inf], limits]), np.concatenate([limits, [LARGEST]])


def _numbers(low: Floats, high: Floats) -> NDArray[np.uint64]:
    """How many numbers float64 has in each cell."""
    return _keys(high).view(np.uint64) - _keys(low).view(np.uint64)


def _keys(values: Floats) -> Counts:
    """Whole numbers in the order of the values, neighbours for neighbours."""
    bits = np.abs(values).view(np.int64)
    return np.where(values < 0, -bits, bits)


def _values(keys: Counts) -> Floats:
    """The values of `_keys`."""
    return np.where(keys < 0, -1.0, 1.0) * np.abs(keys).view(np.float64)


def _padded(columns: Sequence[Floats], width: int | None = None) -> Floats:
    """Edges of different number in one array."""
    width = max((len(values) for values in columns), default=1) if width is None else width
    whole = np.full((len(columns), width), LARGEST)
    for row, values in zip(whole, columns, strict=True):
        row[: len(values)] = values
    return whole

"""Bins of numeric columns from counts alone: what clients tell of their values is how many lie in each cell.

    cells     the whole number line by eighths of octaves between 2^-40 and 2^40, or a public range in equal parts
    refined   every occupied cell again in parts, as many as its share of all values deserves
    edges     quantiles of the refined counts; where there are few occupied cells, one bin for each

Counts of all clients are added before anybody looks at them, so the bins do not depend on who has which rows. A value
falls into the first bin whose edge is not below it; what is missing (NaN) has a bin of its own behind the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
MOST_BINS = 255
"""With the bin of missing values, codes are bytes."""
LARGEST = float(np.finfo(np.float64).max)
"""The edge of a column's last bin: nothing lies above it."""
_OCTAVES, _PARTS, _REFINED = 40, 8, 2048


def number_line() -> Floats:
    """Upper edges of the first cells of any column, [cells - 1]; the last cell has none."""
    steps = np.arange(-_OCTAVES * _PARTS, _OCTAVES * _PARTS + 1)
    powers = np.exp2(steps / _PARTS)
    # Powers of two are exact, so that whole numbers lie at the edges of cells on every machine.
    powers[::_PARTS] = np.ldexp(1.0, steps[::_PARTS] // _PARTS)
    return np.concatenate([-powers[::-1], [0.0], powers])


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
    found = np.zeros((x.shape[1], cells.shape[-1] + 2), np.int64)
    for column, own in enumerate(found):
        values = np.sort(x[:, column])  # missing ones come last
        own[-1] = np.isnan(values).sum()
        ends = np.searchsorted(values, cells if cells.ndim == 1 else cells[column], side="right")
        own[:-1] = np.diff(ends, prepend=0, append=len(values) - own[-1])
    return found


def refined(occupied: Counts) -> Floats:
    """The occupied cells of the number line in parts, from all clients' counts: edges [columns, cells - 1], padded."""
    line = number_line()
    ends = np.concatenate([[2 * line[0]], line, [2 * line[-1]]])
    columns = []
    for own in occupied[:, :-1]:
        parts = np.ceil(_REFINED * own / max(own.sum(), 1)).astype(np.int64)
        cut = [np.linspace(ends[j], ends[j + 1], parts[j] + 1) for j in np.flatnonzero(parts)]
        columns.append(np.unique(np.concatenate(cut)) if cut else np.zeros(1))
    return _padded(columns)


def edges_of(cells: Floats, counted: Counts, bins: int) -> Floats:
    """Upper edges of each column's bins from all clients' counts, [columns, bins], padded with the largest number."""
    found = []
    for limits, own in zip(cells, counted[:, :-1], strict=True):
        occupied = np.flatnonzero(own)
        through = np.cumsum(own[occupied])
        if len(occupied) <= bins:
            cuts = np.arange(len(occupied) - 1)
        else:
            wanted = through[-1] * np.arange(1, bins) / bins
            cuts = np.unique(np.searchsorted(through, wanted))
            cuts = cuts[cuts < len(occupied) - 1]
        # In the middle of the gap between two occupied cells; their common edge where there is none.
        below = limits[np.minimum(occupied[cuts], len(limits) - 1)]
        above = limits[np.maximum(occupied[cuts + 1] - 1, 0)] if len(cuts) else below
        found.append(np.unique(below + (above - below) / 2))
    return _padded(found, bins)


def unit_of(counted: Counts, line: Floats) -> float:
    """A power of two not below any target."""
    used = np.flatnonzero(counted[:, :-1].sum(axis=0) > 0)
    ends = np.concatenate([[2 * line[0]], line, [2 * line[-1]]])
    bound = max(abs(ends[used[0]]), abs(ends[used[-1] + 1])) if len(used) else 1.0
    return float(2.0 ** np.ceil(np.log2(max(bound, 2.0**-40))))


def codes(x: Floats, edges: Floats) -> NDArray[np.uint8]:
    """The bin of every value, [n, columns]; missing ones have the number `bins`."""
    bins = edges.shape[1]
    found = np.empty(x.shape, np.uint8)
    for column in range(x.shape[1]):
        found[:, column] = np.searchsorted(edges[column, :-1], x[:, column])
    found[np.isnan(x)] = bins
    return found


def _padded(columns: Sequence[Floats], width: int | None = None) -> Floats:
    """Edges of different number in one array."""
    width = max((len(own) for own in columns), default=1) if width is None else width
    whole = np.full((len(columns), width), LARGEST)
    for row, own in zip(whole, columns, strict=True):
        row[: len(own)] = own
    return whole

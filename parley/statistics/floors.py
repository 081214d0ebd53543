"""What leaves a client of counts and of sorted values: nothing that fewer than a least number stand behind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from parley.algorithms.exchange import F, Settings, exchange
from parley.algorithms.trees.binning import LARGEST, Counts, Floats
from parley.algorithms.trees.binning import above_floor as above_floor

_FEW = 16
_WIDTH = 3.0
"""Standard deviations on both sides of the mean that cells divide."""


def floored(form: Callable[..., Any], *, accepts: Callable[..., Any], **settings: Unpack[Settings]) -> Callable[[F], F]:
    """Declare an answer to which at least the method's `floor` of samples must stand behind all that is said."""
    usual: Settings = {
        "discloses": lambda self: disclosed(self.floor),
        "floor": lambda self: self.floor,
        "stack": False,
    }
    return exchange(form, accepts=accepts, **(usual | settings))


def disclosed(floor: int) -> tuple[str, ...]:
    """What a floor that hides nothing shows of samples."""
    return ("inputs", "labels") if floor < 2 else ()


def cell_edges(means: Floats, deviations: Floats, bins: int) -> Floats:
    """Upper edges of equal cells about the mean, [features, bins + 1]; values beyond have a cell on each side."""
    most = LARGEST / 8
    low, high = (np.clip(means + side * _WIDTH * deviations, -most, most) for side in (-1, 1))
    return np.linspace(low, high, bins + 1, axis=1)


@dataclass(frozen=True)
class Blocks:
    """Neighbouring values of each row, at least `least` together or none.

    A mean lies between the values it is of, so for any t the number of values up to t is that of the means up to t,
    each counted as often as it says, but for one mean: less than the largest block of different values.
    """

    means: Floats
    """[rows, blocks]."""
    weights: Counts
    """[rows, blocks]: how many values."""
    equal: NDArray[np.bool_]
    """[rows, blocks]: all of them are the same."""
    few: NDArray[np.bool_]
    """[rows]: there are few different values, each of which is a block where they are enough."""

    @classmethod
    def of(cls, values: Floats, blocks: int, least: int) -> Blocks:
        """At most so many blocks of each row; NaN is left out."""
        shape = (len(values), blocks)
        made = cls(np.zeros(shape), np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(len(values), bool))
        for number, row in enumerate(values):
            ordered = np.sort(row[~np.isnan(row)])
            parts = min(blocks, len(ordered) // max(least, 1))
            if parts == 0:
                continue
            changes = np.flatnonzero(np.diff(ordered)) + 1
            made.few[number] = len(changes) < min(_FEW, len(ordered) // 4)
            cuts = len(ordered) * np.arange(parts + 1) // parts
            if made.few[number] and len(by_value := _value_cuts(changes.tolist(), len(ordered), least)) <= blocks + 1:
                cuts, parts = np.array(by_value), len(by_value) - 1
            weight = made.weights[number, :parts] = np.diff(cuts)
            low, high = ordered[cuts[:-1]], ordered[cuts[1:] - 1]
            sums = np.add.reduceat(ordered / np.repeat(weight, weight), cuts[:-1])
            made.means[number, :parts], made.equal[number, :parts] = np.clip(sums, low, high), low == high
        return made


def _value_cuts(changes: list[int], end: int, least: int) -> list[int]:
    """Where to cut sorted values that change at these places, so that equal ones are blocks by themselves wherever
    enough of them are left when all other blocks have enough, too; from 0 to the end."""
    cuts = [0]
    for begin, change in itertools.pairwise([0, *changes, end]):
        low = begin if begin == cuts[-1] else max(begin, cuts[-1] + least)
        high = change if change == end else min(change, end - least)
        if high - low >= least:
            cuts += [cut for cut in (low, high) if cut > cuts[-1]]
    return cuts if cuts[-1] == end else [*cuts, end]


def block_quantiles(means: Floats, weights: Counts | Floats, shares: Sequence[float]) -> Floats:
    """Quantiles of one feature from all clients' blocks."""
    order = np.argsort(means[weights > 0], kind="stable")
    values, through = means[weights > 0][order], np.cumsum(weights[weights > 0][order])
    if len(values) == 0:
        return np.zeros(len(shares))
    wanted = np.ceil(np.asarray(shares) * through[-1])
    return np.asarray(values[np.minimum(np.searchsorted(through, wanted), len(values) - 1)])


def by_level(means: Floats, weights: Counts, levels: Floats) -> tuple[Floats, Floats]:
    """Blocks of a feature of few values as weights of the two levels next to each mean, which give that mean; means
    beyond all levels stay."""
    if not len(levels):
        return means, weights.astype(np.float64)
    above = np.searchsorted(levels, means)
    inside = (above > 0) & (above < len(levels))
    low, high = levels[np.maximum(above - 1, 0)], levels[np.minimum(above, len(levels) - 1)]
    up = np.divide(means - low, high - low, out=np.ones(means.shape), where=inside)
    return np.stack([np.where(inside, low, means), np.where(inside, high, means)]), np.stack(
        [weights - np.rint(weights * up), np.rint(weights * up)]
    )


def cell_quantiles(edges: Floats, counts: Counts, shares: Sequence[float]) -> Floats:
    """Quantiles of one feature from counts in cells: linear within a cell, the only edge of an outer one."""
    through = np.cumsum(counts)
    if through[-1] == 0:
        return np.zeros(len(shares))
    ends = np.concatenate([edges[:1], edges, edges[-1:]])
    quantiles = []
    for share in shares:
        wanted = share * float(through[-1])
        cell = int(np.searchsorted(through, max(wanted, 0.5)))  # the first one that has a value, if not a later one
        inside = (wanted - through[cell]) / counts[cell] + 1
        quantiles.append(ends[cell] + inside * (ends[cell + 1] - ends[cell]))
    return np.array(quantiles)

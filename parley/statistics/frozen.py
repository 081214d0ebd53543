"""What is frozen of statistics: the numbers by which every client normalises and encodes its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, fsum, sqrt

from parley.core.errors import InputError
from parley.core.show import Brief
from parley.data.columns import Column, Method
from parley.data.dates import first_day
from parley.statistics.method import SHARES


@dataclass(frozen=True, repr=False)
class Feature(Brief):
    """A column of a table, a channel of an image or a target, over all clients that told of it."""

    name: str
    count: int
    """Values that are there."""
    missing: int
    mean: float | None
    """None where there are no values."""
    std: float | None
    """Of the population: n, not n - 1."""
    variance: float | None
    quantiles: Mapping[float, float]
    """Share -> value; empty where there are no values. 0 and 1 are the lowest and the highest block's mean or cell's
    end: the smallest and the largest value are not told."""
    rank_error: float | None
    """By which share of the values a quantile's rank may be off, at most."""
    fill: float | None
    """What stands for missing values: the median; of a column of few different values one of them, None where there are
    none that enough samples of a client share."""
    edges: tuple[float, ...]
    """Upper edges of the histogram's cells; the last cell has none."""
    counts: tuple[int, ...]
    """Values in each cell, without those of cells that were too small at a client to be reported."""
    withheld: int
    """Clients that told nothing of it because they have too few values."""
    target: bool = False
    date: bool = False
    """Its values are days since 1970-01-01."""

    @property
    def left_out(self) -> int:
        """Values that the histogram lacks, because too few were in their cell to be reported."""
        return self.count - sum(self.counts)


def frozen(feature: Feature, method: Method, fill: str | None) -> tuple[float, float, float]:
    """Center, scale and what stands for missing values."""
    if feature.mean is None or feature.std is None or not feature.quantiles:
        raise InputError(
            f"column '{feature.name}' has no values that clients may report, so nothing can be frozen; leave it out of "
            "the data, or lower the floor."
        )
    share = feature.quantiles
    center, scale = {
        "standard": (feature.mean, feature.std),
        "min-max": (share[0.0], share[1.0] - share[0.0]),
        "robust": (share[0.5], share[0.75] - share[0.25]),
        "none": (0.0, 1.0),
    }[method]
    if fill == "median" and feature.fill is None:
        raise InputError(
            f"column '{feature.name}' has few different values, and none with enough samples at one client to be "
            "reported; fill with the mean, or lower the floor."
        )
    if scale == float("inf"):
        raise InputError(f"column '{feature.name}' holds numbers that are too large to be normalised.")
    if scale == 0 or feature.std == 0:
        center, scale = 0.0, 1.0
    return center, scale, feature.mean if fill == "mean" or feature.fill is None else feature.fill


def encoded_columns(
    features: Sequence[Feature],
    levels: Mapping[str, Mapping[str, int]],
    columns: Sequence[str],
    table: Mapping[str, Column],
    method: Method,
    fill: str | None,
) -> dict[str, Column]:
    """Every column with all that had to be found out; `method` and `fill` are for those that do not say."""
    if (odd := next((name for name in table if name not in columns), None)) is not None:
        raise InputError(f"there is no column '{odd}', which preprocessing.table declares.")
    measured = {feature.name: feature for feature in features if not feature.target}
    encoded = {}
    for name in columns:
        held = "texts" if name in levels else "dates" if measured[name].date else "numbers"
        column = table.get(name, Column()).of(held, name)
        if column.holds != held:
            raise InputError(f"column '{name}' is {column.kind}, but the data have {held} there.")
        if column.kind == "categorical":
            encoded[name] = _categorical(name, column, levels[name], fill)
            continue
        feature = measured[name] if not column.texts else _ordinal(name, column, levels[name])
        filled = {None: fill, "none": None}.get(column.impute, column.impute)
        center, scale, value = frozen(feature, column.scaling or method, filled)
        center = first_day(column.since) if column.since else center
        encoded[name] = replace(column, center=center, scale=scale, fill=value if filled else None)
    return encoded


def _categorical(name: str, column: Column, counts: Mapping[str, int], fill: str | None) -> Column:
    """Levels that enough samples have, and the most frequent one where missing cells are filled."""
    kept = tuple(level for level, count in counts.items() if count >= max(column.least, 1) or column.levels)
    if not kept:
        raise InputError(f"column '{name}' has no level with at least `floor` samples; lower the floor.")
    filled = column.impute == "most-frequent" or (column.impute is None and fill is not None)
    return replace(column, levels=kept, fill=max(kept, key=lambda level: counts[level]) if filled else None)


def _ordinal(name: str, column: Column, counts: Mapping[str, int]) -> Feature:
    """The statistics of the numbers of levels, from how many samples have each."""
    many = [counts.get(level, 0) for level in column.levels]
    total = sum(many)
    if not total:
        raise InputError(f"column '{name}' has no level with at least `floor` samples; lower the floor.")
    mean = fsum(code * count for code, count in enumerate(many)) / total
    variance = fsum((code - mean) ** 2 * count for code, count in enumerate(many)) / total
    codes = [float(code) for code, count in enumerate(many) for _ in range(count)]
    quantiles = {share: codes[max(ceil(share * total), 1) - 1] for share in SHARES}
    return Feature(name, total, 0, mean, sqrt(variance), variance, quantiles, 0.0, quantiles[0.5], (), (), 0)

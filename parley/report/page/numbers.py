"""Numbers as the report writes them."""

from __future__ import annotations

import numpy as np

from parley.report.groups import Group
from parley.report.seed_means import SeedMean


def last_value(group: Group, metric: str) -> str | None:
    """The mean of the last values with half of its interval, or how many seeds diverged."""
    lost = group.diverged(metric)
    if lost:
        return f"{lost} of {len(group.runs)} diverged" if len(group.runs) > 1 else "diverged"
    return value(metric, group.last(metric))


def value(metric: str, mean: SeedMean) -> str | None:
    if np.isnan(mean.value):
        return None
    half = "" if np.isnan(mean.half) else f" ± {show(metric, mean.half)}"
    return show(metric, mean.value) + half


def show(metric: str, number: float) -> str:
    """A metric's value: accuracies in percent."""
    if not np.isfinite(number):
        return "diverged"
    return f"{100 * number:.2f}%" if metric.endswith("accuracy") else f"{number:.4g}"


def megabytes(value: float | None) -> str | None:
    return None if value is None else f"{value / 1e6:,.3g}" if value < 1e9 else f"{value / 1e6:,.0f}"


def number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"

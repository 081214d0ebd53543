"""Numbers as the report writes them."""

from __future__ import annotations

import numpy as np

from parley.core.numbers import megabytes, metric_text
from parley.report.groups import Group
from parley.study.seeds import SeedMean


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
    return metric_text(metric, number)


def sent(group: Group, metric: str) -> str | None:
    """Megabytes of a federated method; None where no model is sent, or where it was not measured."""
    total = group.total(metric)
    return None if total is None or group.role != "federated" else megabytes(total)


def number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"

"""Survival curves as they are read: a row for every step, medians, intervals, the log-rank test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy.stats import norm

from parley.algorithms.trees.binning import Counts, Floats
from parley.analyse.kaplan_meier import KaplanMeier, at_risk_of, greenwood, log_log_interval, log_rank, product_limit
from parley.analyse.tables import data_frame
from parley.analyse.times import ALL_EVENTS
from parley.core.errors import InputError, ParleyError, nearest
from parley.core.show import Brief, as_html
from parley.core.text import csv_text
from parley.engine.run import Run

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class Step(Brief):
    """One row of a curve."""

    time: float | None
    """When the curve falls: where a cell of the grid ends, or a time of events; None of the last cell, without an
    end."""
    at_risk: int
    """Rows not yet gone when the cell begins, or at that time."""
    events: int
    censored: int
    """Rows last seen in the cell, or from this time of events to the next."""
    survival: float
    error: float
    """Greenwood's standard error."""
    low: float
    high: float
    """The interval, log-log: it stays between 0 and 1."""
    lowest: float
    """What unrounded times may have at least; they have at most `survival`."""


@dataclass(frozen=True, repr=False)
class Curve(Brief):
    """The survival of one group."""

    group: str
    """The value of the column, or 'all'."""
    rows: int
    events: int
    clients: int
    """That have enough rows of the group to tell of them."""
    median: float | None
    """When half are left; None where the curve does not fall so low, or only in the last cell."""
    median_low: float | None
    median_high: float | None
    expected: float | None
    """Events if all groups had one hazard."""
    steps: tuple[Step, ...]

    def at(self, time: float) -> float:
        """The share that survives a time."""
        passed = [step.survival for step in self.steps if step.time is not None and step.time <= time]
        return passed[-1] if passed else 1.0


@dataclass(frozen=True, repr=False)
class SurvivalCurves(Brief):
    """Kaplan-Meier curves of all clients' rows, and whether groups differ."""

    title: str
    by: str
    """The column that makes groups, or nothing."""
    times: str
    """grid or raw."""
    curves: tuple[Curve, ...]
    level: float
    """Of the intervals."""
    statistic: float | None
    """Log-rank chi-squared."""
    freedom: int
    """Its degrees of freedom."""
    p: float | None
    """Of the log-rank test, that all groups have one hazard."""
    rows: int
    """Complete rows behind the curves."""
    missing: int
    """Rows left out because a value is missing."""
    clients: int
    """That were asked."""
    contributed: int
    """That have enough complete rows to tell of them."""
    floor: int
    absent: Mapping[str, str]
    """Client that did not answer -> why."""

    @classmethod
    def of(cls, run: Run, level: float = 0.95) -> SurvivalCurves:
        """From a run of the method, trained or loaded."""
        if "curves" not in run.state:
            raise ParleyError("this run has no survival curves: no client answered, or it was for something else.")
        method, counts = cast("KaplanMeier", run.algorithm), run.state["curves"]
        sums = {name: value.numpy() for name, value in counts.items()}
        events, at_risk = at_risk_of(sums["events"], sums["censored"])
        statistic, freedom, p, expected = log_rank(events, at_risk)
        test = method.by and freedom
        times = _times(sums["grid"], method.times == "raw")
        quantile = float(norm.ppf((1 + level) / 2))
        curves = tuple(
            _curve(
                name,
                times,
                events[g],
                at_risk[g],
                sums["censored"][g],
                int(sums["rows"][g]),
                int(sums["tellers"][g]),
                float(expected[g]) if test else None,
                quantile,
                method.times == "raw",
            )
            for g, name in enumerate(method.names)
        )
        return cls(
            run.task.info.name,
            method.by,
            method.times,
            curves,
            level,
            statistic if test else None,
            freedom,
            p if test else None,
            int(sums["rows"].sum()),
            int(sums["missing"]),
            len(run.federation),
            int(sums["clients"]),
            method.floor,
            {failure.client: failure.reason for failure in run.failures()},
        )

    def __getitem__(self, group: str) -> Curve:
        by_group = {curve.group: curve for curve in self.curves}
        if group not in by_group:
            raise InputError(f"there is no group '{group}': {nearest(group, by_group)}")
        return by_group[group]

    @property
    def grid_error(self) -> float:
        """By how much the curves of unrounded times may lie below these where cells end; the last has no end."""
        steps = (step for curve in self.curves for step in curve.steps if step.time is not None)
        return max((step.survival - step.lowest for step in steps), default=0.0)

    def table(self) -> list[dict[str, Any]]:
        """A row for every group and step."""
        return [{"group": curve.group} | asdict(step) for curve in self.curves for step in curve.steps]

    def frame(self) -> DataFrame:
        """The rows as a pandas DataFrame."""
        return data_frame(self.table(), "group")

    def csv(self) -> str:
        return csv_text(self.table())

    def json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    def notes(self) -> list[str]:
        """What has to be known to read the curves, in sentences."""
        events = sum(curve.events for curve in self.curves)
        sentences = [
            f"Kaplan-Meier: {self.rows:,} rows with {events:,} events of {self.contributed} of {self.clients} clients."
        ]
        if events == self.rows:
            sentences.append(ALL_EVENTS)
        if self.p is not None:
            sentences.append(
                f"Log-rank test of '{self.by}': chi-squared {self.statistic:.4g} with {self.freedom} degrees of "
                f"freedom, p = {self.p:.4g}."
            )
        if self.times == "grid":
            sentences.append(
                "Times are known to a cell, and rows last seen in one count as at risk until its end: the curve of "
                f"unrounded times lies at most {self.grid_error:.2g} below where cells end."
            )
        if self.missing:
            sentences.append(f"{self.missing:,} rows with missing values are left out.")
        silent = self.clients - self.contributed - len(self.absent)
        if silent:
            sentences.append(f"{silent} told nothing: they have fewer than {self.floor} complete rows (floor).")
        for curve in self.curves:
            if curve.clients < self.contributed:
                few = self.contributed - curve.clients
                sentences.append(
                    f"{few} told nothing of group {curve.group}: they have fewer than {self.floor} rows of it."
                )
        return sentences + [f"Client '{client}' {reason}" for client, reason in self.absent.items()]

    def _repr_html_(self) -> str:
        heads = ("group", "rows", "events", "median", "median_low", "median_high")
        rows = [[getattr(curve, name) for name in heads] for curve in self.curves]
        return as_html("Kaplan-Meier", rows, heads, self.notes())


def _times(grid: Floats, raw: bool) -> list[float | None]:
    values: list[float] = grid.tolist()
    return list(values) if raw else [*values[1:], None]


def _curve(
    name: str,
    times: list[float | None],
    events: Counts,
    at_risk: Counts,
    censored: Counts,
    rows: int,
    clients: int,
    expected: float | None,
    quantile: float,
    raw: bool,
) -> Curve:
    survived, variance = product_limit(events, at_risk), greenwood(events, at_risk)
    low, high = log_log_interval(survived, variance, quantile)
    with np.errstate(invalid="ignore"):
        errors = np.where(survived > 0, survived * np.sqrt(variance), 0.0)
    lowest = survived if raw else product_limit(events, at_risk - censored)
    steps = tuple(
        Step(time, *map(int, counted), *map(float, values))
        for time, counted, values in zip(
            times,
            zip(at_risk, events, censored, strict=True),
            zip(survived, errors, low, high, lowest, strict=True),
            strict=True,
        )
    )
    median, first, last = (_half(times, values) for values in (survived, low, high))
    return Curve(name, rows, int(events.sum()), clients, median, first, last, expected, steps)


def _half(times: list[float | None], values: Floats) -> float | None:
    """The first time at which at most half are left."""
    below = np.flatnonzero(values <= 0.5)
    return times[int(below[0])] if len(below) else None

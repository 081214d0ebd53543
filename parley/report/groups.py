"""Runs of one study that differ in their seeds alone, as one line of a table and one curve of a figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from parley.report.contender import Clients, Contender, Reached, Role
from parley.report.seed_means import SeedMean
from parley.store.runs import RunInfo, RunStore
from parley.store.tables import Absence
from parley.study.seeds import by_study
from parley.theory.theta import Array


@dataclass(frozen=True)
class Curve:
    """A metric along the rounds: means over the seeds that measured it there, and the lowest and highest of them."""

    rounds: Array
    mean: Array
    low: Array
    high: Array
    megabytes: Array
    """Sent and received until then, the mean over seeds."""
    seconds: Array


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one study that differ in their seeds alone; one run is a group too."""

    label: str
    runs: tuple[Contender, ...]

    @property
    def config(self) -> Mapping[str, Any]:
        return self.runs[0].config

    @property
    def algorithm(self) -> str:
        return self.runs[0].algorithm or "?"

    @property
    def role(self) -> Role:
        return self.runs[0].role

    @property
    def clients(self) -> Clients | None:
        """Of the first run."""
        return self.runs[0].judged

    @property
    def absences(self) -> tuple[Absence, ...]:
        return tuple(one for run in self.runs for one in run.absences)

    @cached_property
    def metrics(self) -> list[str]:
        """What all its runs have measured."""
        return sorted(set.intersection(*(set(run.series) for run in self.runs)))

    def last(self, metric: str) -> SeedMean:
        """The last value, over seeds."""
        return SeedMean.of([run.last(metric) for run in self.runs])

    def best(self, metric: str) -> SeedMean:
        """The best value, over seeds."""
        return SeedMean.of([run.best(metric) for run in self.runs])

    def total(self, cost: str) -> float | None:
        """A cost of the whole run, the mean over seeds; None where it was not measured."""
        return float(np.mean([run.total(cost) for run in self.runs])) if self._measured(cost) else None

    def _measured(self, metric: str) -> bool:
        return any(metric in run.series for run in self.runs)

    def reached(self, metric: str, target: float) -> list[Reached | None]:
        """Where each run met the target."""
        return [run.reached(metric, target) for run in self.runs]

    def curve(self, metric: str, most: int | None = None, *, extremes: bool = False) -> Curve:
        """The metric in the rounds that all runs measured; at most `most` of them, the first and the last among them.

        `extremes`: in each stretch of rounds that where the lowest and that where the highest run is; else evenly.
        """
        rounds = self.runs[0].series[metric][0]
        for run in self.runs[1:]:
            rounds = np.intersect1d(rounds, run.series[metric][0], assume_unique=True)
        values = np.array([run.series[metric][1][np.searchsorted(run.series[metric][0], rounds)] for run in self.runs])
        low, high = values.min(0), values.max(0)
        if most is not None and len(rounds) > most:
            chosen = extreme_places(low, high, most) if extremes else _even(len(rounds), most)
            rounds, values, low, high = rounds[chosen], values[:, chosen], low[chosen], high[chosen]
        megabytes = np.mean([run.until("up/bytes", rounds) + run.until("down/bytes", rounds) for run in self.runs], 0)
        seconds = np.mean([run.until("seconds", rounds) for run in self.runs], axis=0)
        return Curve(rounds, values.mean(0), low, high, megabytes / 1e6, seconds)


def extreme_places(low: Array, high: Array, most: int) -> Array:
    """At most `most` places: both ends, and of every stretch between where `low` is lowest and `high` highest."""
    count = len(low)
    edges = np.linspace(1, count - 1, max(0, most - 2) // 2 + 1).round().astype(int)
    lows, highs = np.nan_to_num(low, nan=np.inf), np.nan_to_num(high, nan=-np.inf)
    chosen = {0, count - 1}
    for begin, end in pairwise(edges):
        if end > begin:
            chosen |= {int(begin + lows[begin:end].argmin()), int(begin + highs[begin:end].argmax())}
    return np.array(sorted(chosen))


def _even(count: int, most: int) -> Array:
    places: Array = np.unique(np.linspace(0, count - 1, most).round().astype(int))
    return places


def stored_groups(store: RunStore, infos: Sequence[RunInfo], metrics: Iterable[str] | None = None) -> list[Group]:
    """The runs in groups, in the order of their first runs, with these metrics or all.

    Runs that have recorded nothing are left out.
    """
    wanted = None if metrics is None else list(metrics)
    found = []
    for infos_of_one in by_study(infos):
        runs = [Contender.stored(store, info, wanted) for info in infos_of_one if store.metric_names(info.id)]
        if runs:
            found.append(Group(runs[0].label, tuple(runs)))
    return told_apart(found)


def told_apart(groups: Sequence[Group]) -> list[Group]:
    """Groups of the same name are called by the settings in which they differ, else by ids, or numbered."""
    by_name: dict[str, list[Group]] = {}
    for group in groups:
        by_name.setdefault(group.label, []).append(group)
    called = {id(group): name for alike in by_name.values() for group, name in zip(alike, _names(alike), strict=True)}
    count = Counter(called.values())
    named = []
    for place, group in enumerate(groups, 1):
        unique = group.runs[0].id or f"{group.label} ({place})"
        named.append(Group(called[id(group)] if count[called[id(group)]] == 1 else unique, group.runs))
    return named


def _names(alike: Sequence[Group]) -> list[str]:
    """`digits: fedprox, alpha = 0.1`; at most three settings are named."""
    if len(alike) == 1:
        return [alike[0].label]
    flat = [dict(flat_settings(group.config)) for group in alike]
    keys = sorted({key for own in flat for key in own} - {"seed", "data.seed", "data_fingerprint", "revision"})
    differ = [key for key in keys if len({repr(own[key]) for own in flat if key in own}) > 1]
    differ.sort(key=lambda key: (not key.startswith("algorithm."), not key.endswith(".name")))
    names = []
    for group, own in zip(alike, flat, strict=True):
        told = [
            str(own[key]) if key.endswith(".name") else f"{key.rpartition('.')[2]} = {own[key]}"
            for key in differ[:3] if key in own
        ]  # fmt: skip
        names.append(f"{group.label}: {', '.join(told)}" if told else group.label)
    return names


def flat_settings(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting of a resolved study by its dotted name."""
    for key, item in table.items():
        if isinstance(item, Mapping) and item:
            yield from flat_settings(item, f"{before}{key}.")
        else:
            yield f"{before}{key}", item


def headline_metric(groups: Sequence[Group]) -> str:
    """What the runs are judged by: the first of the usual metrics that most of them have measured."""
    count = Counter(name for group in groups for name in group.metrics)
    usual = ["central/accuracy", "clients/accuracy"]
    usual += sorted(name for name in count if name.startswith("central/") and not name.endswith("/loss"))
    usual += ["central/loss", "clients/loss", "train/loss", "up/bytes"]
    return max((name for name in dict.fromkeys(usual) if name in count), key=lambda n: count[n], default="")

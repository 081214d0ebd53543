"""Runs of one study that differ in their seeds alone, as one line of a table and one curve of a figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from parley.core.portable import portable
from parley.core.show import Brief
from parley.engine.stopping import headline_of
from parley.report.contender import Contender, Reached, Role
from parley.report.seed_means import SeedMean
from parley.store.runs import RunInfo, RunStore
from parley.store.tables import Absence
from parley.study.seeds import by_study, counted
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


class Judged(NamedTuple):
    """A client of one run, and how it fared the last time clients were judged one by one."""

    seed: int | None
    client: str
    value: float


@dataclass(frozen=True)
class Unfinished:
    """A run that is left out of its group's means, since other seeds have finished."""

    id: str
    seed: int | None
    status: str
    progress: str
    """`round 3 of 40`."""
    absences: tuple[Absence, ...] = ()
    ending: str = ""
    """Why it ended, where that is known."""

    def __str__(self) -> str:
        which = self.id if self.seed is None else f"seed {self.seed}"
        return f"{which} ({self.status}{' at' if self.status != 'running' else ','} {self.progress})"

    @classmethod
    def stored(cls, store: RunStore, info: RunInfo) -> Unfinished:
        seed, planned = info.config.get("seed"), info.config.get("rounds", "?")
        progress = f"round {info.rounds} of {planned}"
        ending = str(info.summary.get("ended", ""))
        missing = tuple(store.failures(info.id))
        return cls(info.id, seed if isinstance(seed, int) else None, info.status, progress, missing, ending)


@dataclass(frozen=True, eq=False, repr=False)
class Group(Brief):
    """Runs of one study that differ in their seeds alone; one run is a group too."""

    label: str
    runs: tuple[Contender, ...]
    """Those that count: the finished ones, or all while none has finished."""
    unfinished: tuple[Unfinished, ...] = ()
    """The others."""

    @property
    def every(self) -> tuple[Contender | Unfinished, ...]:
        """Its runs, those that count first."""
        return (*self.runs, *self.unfinished)

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
    def trial(self) -> bool:
        """Whether its runs are trials of a search."""
        return any(run.trial for run in self.runs)

    @property
    def judged_by(self) -> str:
        """What its clients are judged by one by one; empty where they were not."""
        return next((run.judged.metric for run in self.runs if run.judged is not None), "")

    @cached_property
    def clients(self) -> list[Judged]:
        """The clients of all its runs, where they were measured."""
        return [
            Judged(run.seed, client, value)
            for run in self.runs if run.judged is not None and run.judged.metric == self.judged_by
            for client, value in run.judged.values.items() if not np.isnan(value)
        ]  # fmt: skip

    def coverage(self, metric: str) -> str:
        """`3 of 5`: over how many clients the last values are, `3 of 5, 2 of 5` where seeds differ; else empty."""
        return ", ".join(dict.fromkeys(words for run in self.runs if (words := run.coverage.get(metric))))

    @property
    def absences(self) -> tuple[Absence, ...]:
        """Of all its runs, those that do not count included."""
        return tuple(one for run in self.every for one in run.absences)

    @property
    def missing(self) -> float:
        """Replies missing in a run, the mean over seeds."""
        return float(np.mean([run.failures for run in self.runs]))

    @property
    def rounds(self) -> str:
        """How far its runs got: `40`, `12–15`, `810 of 3000` while none has finished."""
        done = [run.rounds for run in self.runs]
        text = f"{min(done)}–{max(done)}" if min(done) < max(done) else str(max(done))
        planned = self.config.get("rounds")
        return f"{text} of {planned}" if planned and self.runs[0].status != "finished" else text

    @property
    def status(self) -> str:
        """`finished`, `running`, `2 finished, 1 interrupted`."""
        every = [run.status for run in self.every]
        count = Counter(every)
        return ", ".join(one if times == len(every) else f"{times} {one}" for one, times in count.items())

    @property
    def left_out(self) -> str:
        """The seeds that do not count, with their statuses, as a phrase."""
        return ", ".join(map(str, self.unfinished))

    @cached_property
    def metrics(self) -> list[str]:
        """What all its runs have measured."""
        return sorted(set.intersection(*(set(run.series) for run in self.runs)))

    def diverged(self, metric: str) -> int:
        """How many of its runs ended with a value that is no finite number."""
        return sum(not np.isfinite(run.last(metric)) for run in self.runs)

    @cached_property
    def astray(self) -> str:
        """`diverged`, `1 of 3 diverged`: runs with a loss that is no finite number at the end; else empty."""
        losses = [name for name in self.metrics if name.endswith("loss")]
        lost = max((self.diverged(name) for name in losses), default=0)
        return "" if not lost else "diverged" if len(self.runs) == 1 else f"{lost} of {len(self.runs)} diverged"

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
        """The metric in every round that a run measured, over those that did; at most `most` rounds with both ends.

        `extremes`: in each stretch of rounds that where the lowest and that where the highest run is; else evenly.
        """
        series = [run.series[metric] for run in self.runs]
        rounds = series[0][0]
        if any(not np.array_equal(own, rounds) for own, _ in series[1:]):
            rounds = np.unique(np.concatenate([own for own, _ in series]))
        values, there = np.zeros((len(series), len(rounds))), np.zeros((len(series), len(rounds)), bool)
        for row, (own, measured) in enumerate(series):
            places = np.searchsorted(rounds, own)
            values[row, places], there[row, places] = measured, True
        low, high = np.where(there, values, np.inf).min(0), np.where(there, values, -np.inf).max(0)
        if most is not None and len(rounds) > most:
            chosen = extreme_places(low, high, most) if extremes else _even(len(rounds), most)
            rounds, values, there, low, high = (
                rounds[chosen], values[:, chosen], there[:, chosen], low[chosen], high[chosen]
            )  # fmt: skip

        def mean(each: Array) -> Array:
            found: Array = np.where(there, each, 0.0).sum(0) / there.sum(0)
            return found

        megabytes = np.array([run.until("up/bytes", rounds) + run.until("down/bytes", rounds) for run in self.runs])
        seconds = np.array([run.until("seconds", rounds) for run in self.runs])
        return Curve(rounds, mean(values), low, high, mean(megabytes) / 1e6, mean(seconds))


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

    A group of runs that have all recorded nothing is left out.
    """
    wanted = None if metrics is None else list(metrics)
    found = []
    for own in by_study(infos):
        known = counting(store, own)
        if known:
            others = tuple(Unfinished.stored(store, info) for info in own if info not in known)
            runs = tuple(Contender.stored(store, info, wanted) for info in known)
            found.append(Group(runs[0].label, runs, others))
    return told_apart(found)


def counting(store: RunStore, infos: Sequence[RunInfo]) -> list[RunInfo]:
    """Those runs of a group that have recorded something and that means are taken over."""
    return counted([info for info in infos if store.metric_names(info.id)])


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
        named.append(replace(group, label=called[id(group)] if count[called[id(group)]] == 1 else unique))
    return named


def _names(alike: Sequence[Group]) -> list[str]:
    """`digits: fedprox, alpha = 0.1`; at most three settings are named."""
    if len(alike) == 1:
        return [alike[0].label]
    flat = [dict(flat_settings(portable(group.config))) for group in alike]
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
    """What the runs are judged by: what all their studies say, else the first of the usual that most have measured."""
    count = Counter(name for group in groups for name in group.metrics)
    said = headline_of(run.config for group in groups for run in group.runs)
    told = next((name for name in (said, f"central/{said}", f"clients/{said}") if name in count), None)
    if told is not None:
        return told
    usual = ["central/accuracy", "clients/accuracy"]
    usual += sorted(name for name in count if name.startswith("central/") and not name.endswith("/loss"))
    usual += ["central/loss", "clients/loss", "train/loss", "up/bytes"]
    return max((name for name in dict.fromkeys(usual) if name in count), key=lambda n: count[n], default="")

"""Runs as tables and figures see them: one run with its curves, costs and clients, and groups that differ in seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parley.algorithms.protocol import Algorithm
from parley.core.errors import InputError
from parley.core.show import Brief
from parley.core.text import portable
from parley.engine.roll_call import UNEVALUATED, coverages, is_result, stored_coverages, unevaluated
from parley.engine.run import Run
from parley.engine.stopping import headline_of
from parley.store.records import COUNTS, RoundRecord
from parley.store.runs import RunInfo, RunStore
from parley.store.tables import Absence, absences
from parley.study.seeds import SeedMean, by_study, counted
from parley.training.metrics import smaller_is_better
from parley.training.pooled import Counts

Array = NDArray[np.float64]
Role = Literal["federated", "pooled", "alone"]
"""A federated method, a baseline on pooled data, or clients on their own."""
Series = Mapping[str, tuple[Array, Array]]
"""Metric -> the rounds in which it was measured, and its values."""
COSTS = ("up/bytes", "down/bytes", "up/raw/bytes", "seconds")
_INDIFFERENT = {"seed", "data.seed", "data_fingerprint", "revision"}
"""Settings by which groups of the same name are not told apart."""


@dataclass(frozen=True)
class Clients:
    """How the clients of a run fared the last time they were judged one by one."""

    metric: str
    round: int
    values: dict[str, float]


@dataclass(frozen=True)
class Reached:
    """The first evaluated round at which a run met the target, and its cost until then."""

    round: int
    megabytes: float
    """Sent and received by all clients together, measured."""
    seconds: float
    """Training time without evaluation."""


@dataclass(frozen=True, eq=False, repr=False)
class Contender(Brief):
    """A run's series with what is known about the run."""

    label: str
    """What tables and figures call it."""
    series: Series
    algorithm: str = ""
    """Registered name of the method, where known."""
    role: Role = "federated"
    id: str = ""
    """Its name in the run store, if it was stored."""
    status: str = "finished"
    config: Mapping[str, Any] = field(default_factory=dict)
    """Its resolved study, where it was stored."""
    judged: Clients | None = None
    absences: tuple[Absence, ...] = ()
    """Replies that never came or could not be used, all rounds."""
    ending: str = ""
    """Why it ended before its last round, where that is known."""
    trial: str = ""
    """The search whose trial it is, if it is one."""
    coverage: Mapping[str, str] = field(default_factory=dict)
    """Metric -> `3 of 5`, of means over clients of whom some have no value in the last evaluation."""
    incomplete: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Metric -> rounds in which it lacks clients that could not be evaluated, which are never best nor at a target."""
    counts: Counts | None = None
    """Of its last evaluation, where it counted scores over all clients (evaluate.pooled)."""

    @property
    def seed(self) -> int | None:
        seed = self.config.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def clients(self) -> dict[str, float]:
        """The last values of `clients/accuracy` (else of another metric of theirs), by client, if measured."""
        return self.judged.values if self.judged is not None else {}

    @property
    def failures(self) -> int:
        return len(self.absences)

    @property
    def rounds(self) -> int:
        """The last round of which something is known here."""
        return int(max((rounds[-1] for rounds, _ in self.series.values()), default=0))

    @property
    def standing(self) -> str:
        """`seed 3 (interrupted at round 3 of 40)`."""
        which = self.id if self.seed is None else f"seed {self.seed}"
        at = "," if self.status == "running" else " at"
        return f"{which} ({self.status}{at} round {self.rounds} of {self.config.get('rounds', '?')})"

    def curve(self, metric: str) -> tuple[Array, Array, Array, Array]:
        """Where the metric was measured: rounds, values, megabytes (up and down) and training seconds until then."""
        rounds, values = self.series[metric]
        up, down, seconds = (self.until(name, rounds) for name in ("up/bytes", "down/bytes", "seconds"))
        return rounds, values, (up + down) / 1e6, seconds

    def until(self, cost: str, rounds: Array) -> Array:
        """A cost added up until the end of each of these rounds; 0 where it was not measured."""
        at, values = self.series.get(cost, (np.array([]), np.array([])))
        sums: Array = np.concatenate([[0.0], np.cumsum(values)])[np.searchsorted(at, rounds, side="right")]
        return sums

    def total(self, cost: str) -> float:
        """A cost of the whole run."""
        return float(self.series[cost][1].sum()) if cost in self.series else 0.0

    def last(self, metric: str) -> float:
        return float(self.series[metric][1][-1])

    def best(self, metric: str) -> float:
        """The best value of all rounds in which everybody was evaluated; NaN if none is a number."""
        values = self.series[metric][1]
        known = values[self._counted(metric) & ~np.isnan(values)]
        return float((known.min() if lower_is_better(metric) else known.max()) if len(known) else np.nan)

    def reached(self, metric: str, target: float) -> Reached | None:
        """Where the metric first met the target; None if it never did."""
        values = self.series[metric][1]
        met = values <= target if lower_is_better(metric) else values >= target
        hit = np.flatnonzero(met & self._counted(metric))
        if not len(hit):
            return None
        rounds, _, megabytes, seconds = self.curve(metric)
        return Reached(int(rounds[hit[0]]), float(megabytes[hit[0]]), float(seconds[hit[0]]))

    def _counted(self, metric: str) -> np.ndarray:
        counted: np.ndarray = ~np.isin(self.series[metric][0], list(self.incomplete.get(metric, ())))
        return counted

    @classmethod
    def of_records(cls, label: str, records: Sequence[RoundRecord], **about: Any) -> Contender:
        """From the records of a run."""
        names = dict.fromkeys(name for record in records for name in record.metrics)
        if not names:
            raise InputError(f"the run '{label}' has recorded nothing yet; wait for its first round.")
        series = {}
        for name in names:
            points = [(record.number, record.metrics[name].value) for record in records if name in record.metrics]
            series[name] = (np.array([at for at, _ in points]), np.array([value for _, value in points], np.float64))
        judged = None
        if (metric := judged_by(names)) is not None:
            last = next((r for r in reversed(records) if metric in r.metrics and r.metrics[metric].clients), None)
            judged = None if last is None else Clients(metric, last.number, dict(last.metrics[metric].clients))
        incomplete = {name: frozenset(r.number for r in records if unevaluated(r, name)) for name in names}
        return cls(
            label,
            series,
            judged=judged,
            absences=tuple(absences(records)),
            coverage=coverages(records),
            incomplete=incomplete,
            **about,
        )

    @classmethod
    def of_run(cls, run: Run) -> Contender:
        """From a run just trained."""
        from parley.algorithms import algorithms

        kind = type(run.algorithm)
        name = next((known for known in algorithms if algorithms[known] is kind), kind.__name__)
        return cls.of_records(
            run.name or name,
            run.records,
            algorithm=name,
            role=role(run.algorithm),
            id=run.id or "",
            status=run.status,
            trial=run.trial,
            counts=run.counts,
        )

    @classmethod
    def stored(
        cls, store: RunStore, info: RunInfo, metrics: Iterable[str] | None = None, headline: str | None = None
    ) -> Contender:
        """From the run store, with these metrics, or all; what it has not measured is left out.

        Clients are judged by `headline`, by default what the run's own study names.
        """
        settings = info.config.get("algorithm", {})
        name = str(settings.get("name", "")) if isinstance(settings, Mapping) else str(settings)
        series, names = store.curves(info.id, metrics), store.metric_names(info.id)
        wanted = tuple(metrics) if metrics is not None else ()
        named = headline_of([info.config]) if headline is None else headline
        metric = judged_by(names, next((n for n in wanted if n not in COSTS), "") or named)
        last = store.last_clients(info.id, metric) if metric is not None else None
        judged = Clients(metric, *last) if metric is not None and last is not None else None
        missing = store.failures(info.id)
        return cls(
            info.name,
            series,
            name,
            role_of(name),
            info.id,
            info.status,
            info.config,
            judged,
            tuple(missing),
            str(info.summary.get("ended", "")),
            info.trial,
            stored_coverages(store, info.id, names, missing),
            _incomplete(store, info.id, names, missing),
            counts=Counts.read(info.summary[COUNTS]) if COUNTS in info.summary else None,
        )


def _incomplete(
    store: RunStore, run: str, metrics: Sequence[str], missing: Sequence[Absence]
) -> dict[str, frozenset[int]]:
    """Central results lack clients only where they are means over the clients' own models."""
    rounds = frozenset(absence.round for absence in missing if absence.reason.startswith(UNEVALUATED))
    if not rounds:
        return {}
    where = ["clients"] + ["central"] * (store.last_clients(run, "central/loss") is not None)
    return {name: rounds for name in metrics if is_result(name) and name.partition("/")[0] in where}


def judged_by(metrics: Iterable[str], headline: str = "") -> str | None:
    """What clients are judged by one by one: what the study says, else accuracy, else the first metric of theirs."""
    known = sorted(name for name in metrics if name.startswith("clients/"))
    wanted = (f"clients/{headline.rpartition('/')[2]}", "clients/accuracy")
    return next((name for name in (*wanted, *known) if name in known), None)


def lower_is_better(metric: str) -> bool:
    """Also of metrics about which nothing is known."""
    return smaller_is_better(metric) is not False


def role_of(name: str) -> Role:
    """What the method of this name is in a comparison."""
    from parley.algorithms import algorithms

    return role(algorithms[name]()) if name in algorithms else "federated"


def role(method: Algorithm) -> Role:
    """What a method is in a comparison."""
    if method.needs.pooled:
        return "pooled"
    return "alone" if all(each.reads == "nothing" for each in method.exchanges()) else "federated"


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


@dataclass(frozen=True, eq=False, repr=False)
class Group(Brief):
    """Runs of one study that differ in their seeds alone; one run is a group too."""

    label: str
    runs: tuple[Contender, ...]
    """Those that count: the finished ones, or all while none has finished."""
    unfinished: tuple[Contender, ...] = ()
    """The others, which are left out of means since other seeds have finished."""

    @property
    def every(self) -> tuple[Contender, ...]:
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
        measured = [run for run in self.runs if run.judged is not None and run.judged.metric == self.judged_by]
        every = [Judged(run.seed, client, value) for run in measured for client, value in run.clients.items()]
        return [client for client in every if not np.isnan(client.value)]

    def coverage(self, metric: str) -> str:
        """`3 of 5`: over how many clients the last values are, `3 of 5, 2 of 5` where seeds differ; else empty."""
        return ", ".join(dict.fromkeys(words for run in self.runs if (words := run.coverage.get(metric))))

    @property
    def absences(self) -> tuple[Absence, ...]:
        """Of all its runs, those that do not count included."""
        return tuple(absence for run in self.every for absence in run.absences)

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
        count = Counter(run.status for run in self.every)
        return ", ".join(f"{times} {status}" if len(count) > 1 else status for status, times in count.items())

    @property
    def left_out(self) -> str:
        """The seeds that do not count, with their statuses, as a phrase."""
        return ", ".join(run.standing for run in self.unfinished)

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
        measured = any(cost in run.series for run in self.runs)
        return float(np.mean([run.total(cost) for run in self.runs])) if measured else None

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Of its clients' values, those of all runs together."""
        return [float(value) for value in np.quantile([client.value for client in self.clients], shares)]

    def curve(self, metric: str, most: int | None = None, *, extremes: bool = False) -> Curve:
        """The metric in every round that a run measured, over those that did; at most `most` rounds with both ends.

        `extremes`: in each stretch of rounds that where the lowest and that where the highest run is; else evenly.
        """
        series = [run.series[metric] for run in self.runs]
        rounds = series[0][0]
        if any(not np.array_equal(at, rounds) for at, _ in series[1:]):
            rounds = np.unique(np.concatenate([at for at, _ in series]))
        values = np.full((len(series), len(rounds)), np.nan)
        measured = np.zeros(values.shape, bool)
        for row, (at, reported) in enumerate(series):
            columns = np.searchsorted(rounds, at)
            values[row, columns], measured[row, columns] = reported, True
        low, high = np.where(measured, values, np.inf).min(0), np.where(measured, values, -np.inf).max(0)
        if most is not None and len(rounds) > most:
            chosen = extreme_places(low, high, most) if extremes else _even(len(rounds), most)
            rounds, low, high = rounds[chosen], low[chosen], high[chosen]
            values, measured = values[:, chosen], measured[:, chosen]

        def mean(each: Array) -> Array:
            total: Array = np.where(measured, each, 0.0).sum(0) / measured.sum(0)
            return total

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
    indices: Array = np.unique(np.linspace(0, count - 1, most).round().astype(int))
    return indices


def stored_groups(store: RunStore, infos: Sequence[RunInfo], metrics: Iterable[str] | None = None) -> list[Group]:
    """The runs in groups, in the order of their first runs, with these metrics or all.

    A group of runs that have all recorded nothing is left out. Clients of all are judged by one metric where they have
    one in common.
    """
    wanted, headline = None if metrics is None else list(metrics), headline_of(info.config for info in infos)
    groups = []
    for group in by_study(infos):
        if known := counting(store, group):
            others = [info for info in group if info not in known]
            runs, unfinished = (
                tuple(Contender.stored(store, info, wanted, headline) for info in part) for part in (known, others)
            )
            groups.append(Group(runs[0].label, runs, unfinished))
    return with_distinct_labels(groups)


def counting(store: RunStore, infos: Sequence[RunInfo]) -> list[RunInfo]:
    """Those runs of a group that have recorded something and that means are taken over."""
    return counted([info for info in infos if store.metric_names(info.id)])


def with_distinct_labels(groups: Sequence[Group]) -> list[Group]:
    """Groups of the same name are called by the settings in which they differ, else by ids, or numbered."""
    by_name: dict[str, list[Group]] = {}
    for group in groups:
        by_name.setdefault(group.label, []).append(group)
    called = {id(group): name for alike in by_name.values() for group, name in zip(alike, _names(alike), strict=True)}
    count = Counter(called.values())
    named = []
    for number, group in enumerate(groups, 1):
        unique = group.runs[0].id or f"{group.label} ({number})"
        named.append(replace(group, label=called[id(group)] if count[called[id(group)]] == 1 else unique))
    return named


def _names(alike: Sequence[Group]) -> list[str]:
    """`digits: fedprox, alpha = 0.1`; at most three settings are named."""
    if len(alike) == 1:
        return [alike[0].label]
    flat = [dict(flat_settings(portable(group.config))) for group in alike]
    keys = sorted({key for settings in flat for key in settings} - _INDIFFERENT)
    differ = [key for key in keys if len({repr(settings[key]) for settings in flat if key in settings}) > 1]
    differ.sort(key=lambda key: (not key.startswith("algorithm."), not key.endswith(".name")))
    names = []
    for group, settings in zip(alike, flat, strict=True):
        named = [(key.rpartition(".")[2], settings[key]) for key in differ[:3] if key in settings]
        words = ", ".join(str(value) if last == "name" else f"{last} = {value}" for last, value in named)
        names.append(f"{group.label}: {words}" if words else group.label)
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
    wanted = headline_of(run.config for group in groups for run in group.runs)
    known = next((name for name in (wanted, f"central/{wanted}", f"clients/{wanted}") if name in count), None)
    if known is not None:
        return known
    usual = ["central/accuracy", "clients/accuracy"]
    usual += sorted(name for name in count if name.startswith("central/") and not name.endswith("/loss"))
    usual += ["central/loss", "clients/loss", "train/loss", "up/bytes"]
    return max((name for name in dict.fromkeys(usual) if name in count), key=lambda n: count[n], default="")

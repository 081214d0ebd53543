"""One run as tables and figures see it: its curves with their costs, how its clients fare, and who was missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from parley.algorithms.base.protocol import Algorithm
from parley.core.errors import InputError
from parley.core.show import Brief
from parley.engine.roll_call import UNEVALUATED, coverages, is_result, stored_coverages, unevaluated
from parley.engine.run import Run
from parley.engine.stopping import headline_of
from parley.learn.metrics import smaller_is_better
from parley.store.records import RoundRecord
from parley.store.runs import RunInfo, RunStore
from parley.store.tables import Absence, absences
from parley.theory.theta import Array

Role = Literal["federated", "pooled", "alone"]
"""A federated method, a baseline on pooled data, or clients on their own."""
Series = Mapping[str, tuple[Array, Array]]
"""Metric -> the rounds in which it was measured, and its values."""
COSTS = ("up/bytes", "down/bytes", "up/raw/bytes", "seconds")


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

    def __post_init__(self) -> None:
        if not self.series:
            raise InputError(f"the run '{self.label}' has recorded nothing yet; wait for its first round.")

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
        return int(max(rounds[-1] for rounds, _ in self.series.values()))

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
            label, series, judged=judged, absences=tuple(absences(records)), coverage=coverages(records),
            incomplete=incomplete, **about,
        )  # fmt: skip

    @classmethod
    def of_run(cls, run: Run) -> Contender:
        """From a run just trained."""
        from parley.algorithms import algorithms

        kind = type(run.algorithm)
        name = next((known for known in algorithms if algorithms[known] is kind), kind.__name__)
        return cls.of_records(
            run.name or name, run.records, algorithm=name, role=role(run.algorithm), id=run.id or "", status=run.status,
            trial=run.trial,
        )  # fmt: skip

    @classmethod
    def stored(cls, store: RunStore, info: RunInfo, metrics: Iterable[str] | None = None) -> Contender:
        """From the run store, with these metrics, or all; what it has not measured is left out."""
        settings = info.config.get("algorithm", {})
        name = str(settings.get("name", "")) if isinstance(settings, Mapping) else str(settings)
        series, names = store.curves(info.id, metrics), store.metric_names(info.id)
        metric = judged_by(names, headline_of([info.config]))
        last = store.last_clients(info.id, metric) if metric is not None else None
        judged = Clients(metric, *last) if metric is not None and last is not None else None
        missing = store.failures(info.id)
        return cls(
            info.name, series, name, role_of(name), info.id, info.status, info.config, judged,
            tuple(missing), str(info.summary.get("ended", "")), info.trial,
            stored_coverages(store, info.id, names, missing), _incomplete(store, info.id, names, missing),
        )  # fmt: skip


def _incomplete(
    store: RunStore, run: str, metrics: Sequence[str], missing: Sequence[Absence]
) -> dict[str, frozenset[int]]:
    """Central results lack clients only where they are means over the clients' own models."""
    rounds = frozenset(one.round for one in missing if one.reason.startswith(UNEVALUATED))
    if not rounds:
        return {}
    places = ["clients"] + ["central"] * (store.last_clients(run, "central/loss") is not None)
    return {name: rounds for name in metrics if is_result(name) and name.partition("/")[0] in places}


def judged_by(metrics: Iterable[str], said: str = "") -> str | None:
    """What clients are judged by one by one: what the study says, else accuracy, else the first metric of theirs."""
    own = sorted(name for name in metrics if name.startswith("clients/"))
    wanted = (f"clients/{said.rpartition('/')[2]}", "clients/accuracy")
    return next((name for name in (*wanted, *own) if name in own), None)


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

"""What the report is made of: runs that differ in their seeds as one group, its curves, clients and absences."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from parley.learn.metrics import smaller_is_better
from parley.report.seed_means import SeedMean
from parley.store.runs import RunInfo, RunStore
from parley.store.tables import Absence
from parley.study.difference import essential
from parley.study.toml_text import without_seed
from parley.theory.theta import Array

_COSTS = ("up/bytes", "down/bytes", "seconds")


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


@dataclass(frozen=True)
class Clients:
    """How the clients of a group's first run fared the last time they were judged one by one."""

    metric: str
    round: int
    values: dict[str, float]


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one study that differ in their seeds alone."""

    label: str
    runs: tuple[RunInfo, ...]
    series: tuple[dict[str, tuple[Array, Array]], ...]
    """Of each run: metric -> rounds and values."""
    clients: Clients | None
    absences: tuple[Absence, ...]

    @property
    def config(self) -> dict[str, Any]:
        return self.runs[0].config

    @property
    def algorithm(self) -> str:
        named = self.config.get("algorithm")
        return str(named.get("name", "?")) if isinstance(named, Mapping) else str(named or "?")

    @cached_property
    def metrics(self) -> list[str]:
        """What all its runs have measured."""
        return sorted(set.intersection(*(set(own) for own in self.series))) if self.series else []

    def curve(self, metric: str, most: int) -> Curve:
        """The metric at no more than `most` rounds, the first and the last among them."""
        common = sorted(set.intersection(*(set(own[metric][0].tolist()) for own in self.series)))
        chosen = np.unique(np.linspace(0, len(common) - 1, min(most, len(common))).round().astype(int))
        rounds = np.array(common, dtype=np.float64)[chosen]
        values = np.array([own[metric][1][np.searchsorted(own[metric][0], rounds)] for own in self.series])
        up, down, seconds = (self._total(name, rounds) for name in _COSTS)
        known = np.where(np.isnan(values), np.nan, values)
        return Curve(rounds, known.mean(0), known.min(0), known.max(0), (up + down) / 1e6, seconds)

    def _total(self, metric: str, rounds: Array) -> Array:
        """A cost added up until the end of each round, the mean over seeds."""
        totals = []
        for own in self.series:
            at, values = own.get(metric, (np.array([]), np.array([])))
            sums = np.concatenate([[0.0], np.cumsum(values)])
            totals.append(sums[np.searchsorted(at, rounds, side="right")])
        mean: Array = np.mean(totals, axis=0)
        return mean

    def last(self, metric: str) -> SeedMean | None:
        """The last value, over seeds."""
        return SeedMean.of([own[metric][1][-1] for own in self.series]) if metric in self.metrics else None

    def best(self, metric: str) -> SeedMean | None:
        """The best value, over seeds."""
        if metric not in self.metrics:
            return None
        least = smaller_is_better(metric) is not False
        found = [own[metric][1][~np.isnan(own[metric][1])] for own in self.series]
        return SeedMean.of([(v.min() if least else v.max()) if len(v) else np.nan for v in found])

    def total(self, metric: str) -> float | None:
        """A cost of the whole run, the mean over seeds."""
        if not any(metric in own for own in self.series):
            return None
        return float(np.mean([own[metric][1].sum() if metric in own else 0.0 for own in self.series]))


def groups_of(store: RunStore, infos: Sequence[RunInfo]) -> list[Group]:
    """The runs in groups, in the order of their first runs; runs that have recorded nothing are left out."""
    groups = []
    found = _by_study(infos)
    names = Counter(runs[0].name for runs in found)
    for runs in found:
        series = [(info, store.curves(info.id)) for info in runs]
        known = [(info, own) for info, own in series if own]
        if not known:
            continue
        info, own = known[0]
        label = info.name if names[info.name] == 1 else info.id
        judged = next((m for m in ("clients/accuracy", *sorted(own)) if m.startswith("clients/") and m in own), None)
        last = store.last_clients(info.id, judged) if judged else None
        clients = Clients(judged, *last) if judged and last else None
        absences = tuple(one for each, _ in known for one in store.failures(each.id))
        groups.append(Group(label, tuple(i for i, _ in known), tuple(o for _, o in known), clients, absences))
    return groups


def _by_study(infos: Sequence[RunInfo]) -> list[list[RunInfo]]:
    """Runs of the same study, on the same data or on data that each seed dealt anew."""
    fixed: dict[str, list[RunInfo]] = {}
    for info in infos:
        fixed.setdefault(_alike(info.name, info.config), []).append(info)
    dealt: dict[str, list[RunInfo]] = {}
    for key, runs in fixed.items():
        alone = len({info.config.get("seed") for info in runs}) == 1
        for info in runs:
            dealt.setdefault(_alike(info.name, without_seed(info.config)) if alone else key, []).append(info)
    return list(dealt.values())


def _alike(name: str, config: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in essential(config).items() if key not in ("seed", "plugin_digests")}
    return json.dumps([name, kept], sort_keys=True, default=str)


def headline_metric(groups: Sequence[Group]) -> str:
    """What the runs are judged by: the first of the usual metrics that most of them have measured."""
    count = Counter(name for group in groups for name in group.metrics)
    usual = ["central/accuracy", "clients/accuracy"]
    usual += sorted(name for name in count if name.startswith("central/") and not name.endswith("/loss"))
    usual += ["central/loss", "clients/loss", "train/loss", "up/bytes"]
    return max((name for name in dict.fromkeys(usual) if name in count), key=lambda n: count[n], default="")

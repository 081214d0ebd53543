"""Runs side by side: accuracy, and what it cost in rounds, megabytes and seconds to get to a target.

comparison = Comparison.stored(RunStore(), ["fedavg-digits", "fedadam-digits"])
rich.print(table(comparison))
figure(comparison).savefig("comparison.png", dpi=150)

Runs that differ in their seeds alone are one line: means with 95% intervals, and paired tests over equal seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from parley.core.errors import InputError, nearest
from parley.core.numbers import metric_text
from parley.core.show import Brief, as_html
from parley.core.text import shown
from parley.engine.run import Run
from parley.engine.stopping import headline_of
from parley.report.groups import (
    COSTS,
    Contender,
    Group,
    Reached,
    counting,
    lower_is_better,
    stored_groups,
    with_distinct_labels,
)
from parley.report.pairs import SIGNIFICANT, Pair, paired
from parley.report.same_data import metric_words, warnings
from parley.store.runs import RunStore
from parley.study.seeds import SeedMean, by_study, selected
from parley.training.metrics import check_target

NEAR = 0.95
"""The default target is this share of the best final accuracy."""
MOST_PAIRS = 45
"""Pairs that are tested without being asked for: those of ten groups."""
_WHERE = {
    "central": "on the central test set",
    "clients": "on clients' own held-out samples",
    "train": "in training",
    "pooled": "on all clients' held-out samples together",
}


@dataclass(frozen=True, repr=False)
class Line(Brief):
    """The numbers of one group of runs by a metric and a target: means over its seeds."""

    group: Group
    metric: str
    target: float

    @property
    def label(self) -> str:
        return self.group.label

    @cached_property
    def last(self) -> SeedMean:
        return self.group.last(self.metric)

    @cached_property
    def best(self) -> SeedMean:
        return self.group.best(self.metric)

    @cached_property
    def reached(self) -> tuple[Reached | None, ...]:
        """Of each run; None: it never reached the target."""
        return tuple(run.reached(self.metric, self.target) for run in self.group.runs)

    @property
    def successes(self) -> list[Reached]:
        """Of the runs that reached the target."""
        return [arrival for arrival in self.reached if arrival is not None]

    def cost(self, what: str) -> SeedMean | None:
        """round, megabytes or seconds to the target, over the runs that reached it; None if none did."""
        costs = [float(getattr(arrival, what)) for arrival in self.successes]
        return SeedMean.of(costs) if costs else None

    @property
    def rounds(self) -> float:
        """Of the whole run, as are megabytes and seconds."""
        return float(np.mean([run.rounds for run in self.group.runs]))

    @property
    def up(self) -> float:
        """Megabytes that clients sent."""
        return (self.group.total("up/bytes") or 0.0) / 1e6

    @property
    def raw(self) -> float | None:
        """Megabytes that they would have sent without channels; None where there were none."""
        total = self.group.total("up/raw/bytes")
        return None if total is None else total / 1e6

    @property
    def megabytes(self) -> float:
        """Sent and received by all clients in the whole run."""
        return self.up + (self.group.total("down/bytes") or 0.0) / 1e6

    @property
    def seconds(self) -> float:
        """Of training in the whole run."""
        return self.group.total("seconds") or 0.0

    @cached_property
    def quantiles(self) -> list[float] | None:
        """10%, 50% and 90% of the clients' values of the metric on their own held-out samples; None where not
        measured."""
        known = self.group.clients and self.group.judged_by.rpartition("/")[2] == self.metric.rpartition("/")[2]
        return self.group.quantiles((0.1, 0.5, 0.9)) if known else None

    @property
    def worst(self) -> float | None:
        """The worst of these values, of any seed."""
        return None if self.quantiles is None else self.group.quantiles((float(lower_is_better(self.metric)),))[0]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Several groups of runs judged by one metric and one target."""

    groups: tuple[Group, ...]
    metric: str
    """Full name, such as `central/accuracy`; measured in all the runs."""
    target: float
    reason: str
    """Where the target comes from, as a phrase."""
    against: str | None = None
    """The label of the group that all others are tested against; None tests all pairs."""
    instead: str = ""
    """Why it is not the metric that most of them have measured, as a sentence; empty where it is or was asked for."""
    trials: int = 0
    """Trials of `parley tune` in the store that were left out."""

    @classmethod
    def of(
        cls,
        runs: Iterable[Run | Contender] | Mapping[str, Sequence[Run | Contender]],
        *,
        metric: str | None = None,
        target: float | None = None,
    ) -> Comparison:
        """Compare runs by `metric` (by default accuracy, or loss where a run has none) and a target.

        A mapping names groups: `{"FedAvg": [run0, run1], "SCAFFOLD": [run0, run1]}` has runs of several seeds.
        Without `target`: 95% of the best final accuracy among the federated runs (the lowest final loss / 95%).
        """
        if isinstance(runs, Mapping):
            named = [Group(label, tuple(map(_contender, each))) for label, each in runs.items() if each]
        else:
            named = [Group(run.label, (run,)) for run in map(_contender, runs)]
        groups = with_distinct_labels(named)
        return cls._judged(groups, [group.metrics for group in groups], metric, target)

    @classmethod
    def stored(
        cls,
        store: RunStore,
        runs: Sequence[str] = (),
        *,
        metric: str | None = None,
        target: float | None = None,
        against: str | None = None,
    ) -> Comparison:
        """The same for runs in a store, by their ids or studies' names; seeds of one study are a group.

        None: all but trials of `parley tune`, which are compared only if they are named.
        """
        infos = selected(store, runs)
        trials = 0 if runs else sum(bool(info.trial) for info in store.runs())
        against = store.info(against).id if against == "last" else against
        names = {info.id: set(store.metric_names(info.id)) for info in infos}
        empty = next((info for info in infos if not names[info.id]), None)
        if empty is not None and runs:
            raise InputError(f"the run '{empty.id}' has recorded nothing yet; wait for its first round.")
        groups = [counting(store, group) for group in by_study(infos)]
        measured = [set.intersection(*(names[info.id] for info in group)) for group in groups if group]
        if not measured:
            why = "the store has only trials of parley tune" if trials and not infos else "there is nothing to compare"
            raise InputError(f"{why}; name at least one run.")
        chosen = _common_metric(measured, metric, headline_of(info.config for info in infos))
        judged = cls._judged(stored_groups(store, infos, (chosen, *COSTS)), measured, metric, target, against)
        return replace(judged, trials=trials)

    @classmethod
    def _judged(
        cls,
        groups: Sequence[Group],
        measured: Sequence[Iterable[str]],
        metric: str | None,
        target: float | None,
        against: str | None = None,
    ) -> Comparison:
        """`measured`: what each of the groups has, of which only a part may have been read."""
        if not groups:
            raise InputError("there is nothing to compare; name at least one run.")
        headline = headline_of(run.config for group in groups for run in group.runs)
        name = _common_metric(measured, metric, headline)
        if against is not None:
            against = _named(groups, against)
        check_target(name, target, "the target")
        wanted = (float(target), "as asked for") if target is not None else _default_target(groups, name)
        usual = [each for kind in _kinds(headline) for each in _full_names(kind)]
        instead = "" if metric else metric_words(groups, measured, name, usual)
        return cls(tuple(groups), name, *wanted, against, instead)

    def __repr__(self) -> str:
        values = ", ".join(f"{line.label} {self.show(line.last.value)}" for line in self.lines)
        return f"<Comparison of {len(self.groups)} by {self.metric}: {shown(values, 400)}>"

    def _repr_html_(self) -> str:
        from parley.report.comparison_table import caption, plain_rows

        heads = ("run", "seeds", "last", "best", "rounds to target", "MB to target", "s to target", "s in all")
        return as_html(self.metric_words, plain_rows(self), heads, [*self.warnings, caption(self)])

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """All runs."""
        return tuple(run for group in self.groups for run in group.runs)

    @property
    def lower_is_better(self) -> bool:
        return lower_is_better(self.metric)

    @property
    def metric_words(self) -> str:
        """`accuracy on the central test set`."""
        where, _, what = self.metric.partition("/")
        what = "AUC" if what == "auc" else what
        return f"{what} {_WHERE[where]}" if where in _WHERE else self.metric

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against reading the numbers side by side, as sentences."""
        return tuple(filter(None, (*warnings(self.groups, self.metric), self.instead, self._untrained)))

    @property
    def _untrained(self) -> str:
        """Which groups met the target before any training, as a guess of the most frequent class may."""
        rewards_guesses = self.metric.endswith("accuracy")
        early = [line.group.label for line in self.lines if any(hit.round == 0 for hit in line.successes)]
        if not early:
            return ""
        return (
            f"The target {self.target_text} was met in round 0, before any training, by "
            f"{shown(', '.join(early), 200)}: set --target{', or compare by loss or auc' * rewards_guesses}."
        )

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """One per group, in the order they were given."""
        return tuple(Line(group, self.metric, self.target) for group in self.groups)

    @cached_property
    def pairs(self) -> list[Pair]:
        """Paired tests of the last values; none where there would be more than `MOST_PAIRS` and nobody asked."""
        several = sum(len(group.runs) > 1 for group in self.groups)
        if self.against is None and several * (several - 1) / 2 > MOST_PAIRS:
            return []
        return paired(self.groups, self.metric, self.against)

    @cached_property
    def winner(self) -> Group | None:
        """The federated group that is significantly better than every other one that did not diverge, by `pairs`."""
        rivals = [group for group in self.groups if group.role == "federated" and not group.diverged(self.metric)]
        beaten: dict[str, int] = {}
        for pair in self.pairs:
            if pair.corrected < SIGNIFICANT and {pair.first, pair.second} <= {group.label for group in rivals}:
                better = pair.first if (pair.difference.value < 0) == self.lower_is_better else pair.second
                beaten[better] = beaten.get(better, 0) + 1
        return next((group for group in rivals if beaten.get(group.label) == len(rivals) - 1), None)

    def show(self, value: float) -> str:
        """A value of the metric as text: accuracies in percent."""
        return metric_text(self.metric, value, 1)

    @property
    def target_text(self) -> str:
        """`95.0%`; where there is none to name, `the target`."""
        return "the target" if np.isnan(self.target) else self.show(self.target)


def _contender(run: Run | Contender) -> Contender:
    return run if isinstance(run, Contender) else Contender.of_run(run)


def _named(groups: Sequence[Group], word: str) -> str:
    """The label of the group that a label, or the id of one of its runs, names."""
    for group in groups:
        if group.label == word or any(run.id.startswith(word) for run in group.runs if word):
            return group.label
    raise InputError(f"'{word}' is not among the runs compared: {nearest(word, [group.label for group in groups])}")


def _common_metric(measured: Sequence[Iterable[str]], wanted: str | None, headline: str) -> str:
    """The one asked for, else what the studies say, else accuracy or loss."""
    common = set.intersection(*(set(names) for names in measured))
    for kind in (wanted,) if wanted else _kinds(headline):
        for name in _full_names(kind):
            if name in common:
                return name
    what = f"'{wanted}'" if wanted else "accuracy or loss"
    known = ", ".join(sorted(common))
    if len(measured) == 1:
        raise InputError(f"{what} was not measured; {f'there is {known}' if known else 'nothing was'}.")
    shared = f"they share {known}" if known else "they share no metric at all"
    raise InputError(f"{what} was not measured in all of these runs; {shared}.")


def _kinds(headline: str) -> tuple[str, ...]:
    return (headline, "accuracy", "loss") if headline else ("accuracy", "loss")


def _full_names(kind: str) -> tuple[str, ...]:
    return kind, f"central/{kind}", f"clients/{kind}", f"train/{kind}"


def _default_target(groups: Sequence[Group], metric: str) -> tuple[float, str]:
    federated = [group for group in groups if group.role == "federated"]
    judged = [group for group in federated if not group.trial] or federated
    whose = "the federated runs" if judged else "the runs"
    finals = np.array([group.last(metric).value for group in judged or groups])
    what = metric.rpartition("/")[2]
    if np.isnan(finals).all():
        return np.nan, f"no final {what} of {whose} is a number"
    if lower_is_better(metric):
        return float(np.nanmin(finals) / NEAR), f"{1 / NEAR:.0%} of the lowest final {what} among {whose}"
    return float(np.nanmax(finals) * NEAR), f"{NEAR:.0%} of the best final {what} among {whose}"

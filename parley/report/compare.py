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
from parley.core.inputs import shown
from parley.core.show import Brief, as_html
from parley.engine.run import Run
from parley.engine.stopping import headline_of
from parley.learn.metrics import check_target
from parley.report.contender import COSTS, Contender, Reached, lower_is_better
from parley.report.groups import Group, counting, stored_groups, told_apart
from parley.report.pairs import SIGNIFICANT, Pair, paired
from parley.report.same_data import coverage_words, data_words, loss_words, metric_words
from parley.report.seed_means import SeedMean
from parley.store.runs import RunStore
from parley.study.seeds import by_study, selected

NEAR = 0.95
"""The default target is this share of the best final accuracy."""
MOST_PAIRS = 45
"""Pairs that are tested without being asked for: those of ten groups."""
_PLACES = {"central": "on the central test set", "clients": "on clients' own held-out samples", "train": "in training"}


@dataclass(frozen=True, repr=False)
class Line(Brief):
    """The numbers of one group of runs: means over its seeds."""

    group: Group
    last: SeedMean
    best: SeedMean
    reached: tuple[Reached | None, ...]
    """Of each run; None: it never reached the target."""
    rounds: float
    megabytes: float
    seconds: float
    """Of the whole run, as are the rounds and megabytes."""
    quantiles: tuple[float, float, float] | None
    """10%, 50% and 90% of the clients' accuracies on their own held-out samples, of all runs together; None where they
    were not measured."""
    up: float = 0.0
    """Megabytes that clients sent."""
    raw: float | None = None
    """Megabytes that they would have sent without channels; None where there were none."""

    @property
    def label(self) -> str:
        return self.group.label

    @property
    def successes(self) -> list[Reached]:
        """Of the runs that reached the target."""
        return [one for one in self.reached if one is not None]

    def cost(self, what: str) -> SeedMean | None:
        """round, megabytes or seconds to the target, over the runs that reached it; None if none did."""
        found = [float(getattr(one, what)) for one in self.successes]
        return SeedMean.of(found) if found else None

    @property
    def missing(self) -> float:
        """Replies missing in a run, the mean over seeds."""
        return self.group.missing

    @property
    def status(self) -> str:
        """`finished`, `running`, `2 finished, 1 interrupted`."""
        return self.group.status


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
            named = [Group(label, tuple(map(_contender, own))) for label, own in runs.items() if own]
        else:
            named = [Group(run.label, (run,)) for run in map(_contender, runs)]
        groups = told_apart(named)
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
        own = [[names[info.id] for info in counting(store, group)] for group in by_study(infos)]
        measured = [set.intersection(*known) for known in own if known]
        if not measured:
            alone = trials and not infos
            why = "the store has only trials of parley tune" if alone else "there is nothing to compare"
            raise InputError(f"{why}; name at least one run.")
        chosen = _common_metric(measured, metric, headline_of(info.config for info in infos))
        judged = cls._judged(stored_groups(store, infos, (chosen, *COSTS)), measured, metric, target, against)
        return replace(judged, trials=trials)

    @classmethod
    def _judged(
        cls, groups: Sequence[Group], measured: Sequence[Iterable[str]], metric: str | None, target: float | None,
        against: str | None = None,
    ) -> Comparison:  # fmt: skip
        """`measured`: what each of the groups has, of which only a part may have been read."""
        if not groups:
            raise InputError("there is nothing to compare; name at least one run.")
        said = headline_of(run.config for group in groups for run in group.runs)
        name = _common_metric(measured, metric, said)
        if against is not None:
            against = _named(groups, against)
        check_target(name, target, "the target")
        wanted = (float(target), "as asked for") if target is not None else _default_target(groups, name)
        usual = [each for kind in _kinds(said) for each in _places(kind)]
        instead = "" if metric else metric_words(groups, measured, name, usual)
        return cls(tuple(groups), name, *wanted, against, instead)

    def __repr__(self) -> str:
        found = ", ".join(f"{line.label} {self.show(line.last.value)}" for line in self.lines)
        return f"<Comparison of {len(self.groups)} by {self.metric}: {shown(found, 400)}>"

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
        place, _, what = self.metric.partition("/")
        return f"{what} {_PLACES[place]}" if place in _PLACES else self.metric

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against reading the numbers side by side, as sentences."""
        over = coverage_words(self.groups, self.metric)
        told = (data_words(self.groups), loss_words(self.groups, self.metric), over, self.instead)
        return tuple(filter(None, told))

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """One per group, in the order they were given."""
        return tuple(self._line(group) for group in self.groups)

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
        if np.isnan(value):
            return "nan"
        return f"{value:.1%}" if self.metric.endswith("accuracy") else f"{value:.4g}"

    @property
    def target_text(self) -> str:
        """`95.0%`; where there is none to name, `the target`."""
        return "the target" if np.isnan(self.target) else self.show(self.target)

    def _line(self, group: Group) -> Line:
        quantiles = None
        if group.clients and group.judged_by == "clients/accuracy":
            low, median, high = np.quantile([one.value for one in group.clients], (0.1, 0.5, 0.9))
            quantiles = (float(low), float(median), float(high))
        up, down, seconds, raw = (group.total(name) for name in ("up/bytes", "down/bytes", "seconds", "up/raw/bytes"))
        return Line(
            group, group.last(self.metric), group.best(self.metric), tuple(group.reached(self.metric, self.target)),
            float(np.mean([run.rounds for run in group.runs])), ((up or 0.0) + (down or 0.0)) / 1e6, seconds or 0.0,
            quantiles, (up or 0.0) / 1e6, None if raw is None else raw / 1e6,
        )  # fmt: skip


def _contender(run: Run | Contender) -> Contender:
    return run if isinstance(run, Contender) else Contender.of_run(run)


def _named(groups: Sequence[Group], word: str) -> str:
    """The label of the group that a label, or the id of one of its runs, names."""
    for group in groups:
        if group.label == word or any(run.id.startswith(word) for run in group.runs if word):
            return group.label
    raise InputError(f"'{word}' is not among the runs compared: {nearest(word, [group.label for group in groups])}")


def _common_metric(measured: Sequence[Iterable[str]], wanted: str | None, said: str) -> str:
    """The one asked for, else what the studies say, else accuracy or loss."""
    common = set.intersection(*(set(names) for names in measured))
    for kind in (wanted,) if wanted else _kinds(said):
        for name in _places(kind):
            if name in common:
                return name
    what = f"'{wanted}'" if wanted else "accuracy or loss"
    known = ", ".join(sorted(common))
    if len(measured) == 1:
        raise InputError(f"{what} was not measured; {f'there is {known}' if known else 'nothing was'}.")
    shared = f"they share {known}" if known else "they share no metric at all"
    raise InputError(f"{what} was not measured in all of these runs; {shared}.")


def _kinds(said: str) -> tuple[str, ...]:
    return (said, "accuracy", "loss") if said else ("accuracy", "loss")


def _places(kind: str) -> tuple[str, ...]:
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

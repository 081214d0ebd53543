"""Runs side by side: accuracy, and what it cost in rounds, megabytes and seconds to get to a target.

comparison = Comparison.stored(RunStore(), ["fedavg-digits-x3kp", "fedadam-digits-7mnq"])
rich.print(table(comparison))
figure(comparison).savefig("comparison.png", dpi=150)
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from parley.core.errors import InputError
from parley.core.files import write_atomically
from parley.engine.run import Run
from parley.learn.metrics import smaller_is_better
from parley.report.contender import Contender
from parley.store.runs import RunStore

NEAR = 0.95
"""The default target is this share of the best final accuracy."""
_PLACES = {"central": "on the central test set", "clients": "on clients' own held-out samples", "train": "in training"}


@dataclass(frozen=True)
class Reached:
    """The first evaluated round at which a run met the target, and its cost until then."""

    round: int
    megabytes: float
    """Sent and received by all clients together, measured."""
    seconds: float
    """Training time without evaluation."""


@dataclass(frozen=True)
class Line:
    """One run's numbers."""

    run: Contender
    last: float
    best: float
    reached: Reached | None
    """None: it never reached the target."""
    rounds: int
    megabytes: float
    seconds: float
    """Of the whole run, as are the rounds and megabytes."""
    quantiles: tuple[float, float, float] | None
    """10%, 50% and 90% of the clients' accuracies on their own held-out samples; None where they were not measured."""
    up: float = 0.0
    """Megabytes that clients sent."""
    raw: float | None = None
    """Megabytes that they would have sent without channels; None where there were none."""


@dataclass(frozen=True)
class Comparison:
    """Several runs judged by one metric and one target."""

    contenders: tuple[Contender, ...]
    metric: str
    """Full name, such as `central/accuracy`; measured in all the runs."""
    target: float
    reason: str
    """Where the target comes from, as a phrase."""

    @classmethod
    def of(
        cls, runs: Iterable[Run | Contender], *, metric: str | None = None, target: float | None = None
    ) -> Comparison:
        """Compare runs by `metric` (by default accuracy, or loss where a run has none) and a target.

        Without `target`: 95% of the best final accuracy among the federated runs (the lowest final loss / 95%).
        """
        contenders = _told_apart([run if isinstance(run, Contender) else Contender.of_run(run) for run in runs])
        if not contenders:
            raise InputError("there is nothing to compare; name at least one run.")
        name = _common_metric(contenders, metric)
        if target is not None:
            return cls(contenders, name, float(target), "as asked for")
        return cls(contenders, name, *_default_target(contenders, name))

    @classmethod
    def stored(
        cls, store: RunStore, runs: Sequence[str], *, metric: str | None = None, target: float | None = None
    ) -> Comparison:
        """The same for runs in a store, by their ids."""
        return cls.of([Contender.stored(store, run) for run in runs], metric=metric, target=target)

    @property
    def lower_is_better(self) -> bool:
        return _lower_is_better(self.metric)

    @property
    def metric_words(self) -> str:
        """`accuracy on the central test set`."""
        place, _, what = self.metric.partition("/")
        return f"{what} {_PLACES[place]}" if place in _PLACES else self.metric

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """One per run, in the order they were given."""
        return tuple(self._line(run) for run in self.contenders)

    def show(self, value: float) -> str:
        """A value of the metric as text: accuracies in percent."""
        if np.isnan(value):
            return "nan"
        return f"{value:.1%}" if self.metric.endswith("accuracy") else f"{value:.4g}"

    def _line(self, run: Contender) -> Line:
        rounds, values, megabytes, seconds = run.curve(self.metric)
        hit = np.flatnonzero(values <= self.target if self.lower_is_better else values >= self.target)
        reached = None
        if len(hit):
            first = int(hit[0])
            reached = Reached(int(rounds[first]), float(megabytes[first]), float(seconds[first]))
        known_clients = [value for value in run.clients.values() if not np.isnan(value)]
        quantiles = None
        if known_clients:
            low, median, high = np.quantile(known_clients, (0.1, 0.5, 0.9))
            quantiles = (float(low), float(median), float(high))
        known = values[~np.isnan(values)]
        best = (known.min() if self.lower_is_better else known.max()) if len(known) else np.nan
        sent = run.sums("up/bytes")[-1] + run.sums("down/bytes")[-1]
        return Line(
            run, float(values[-1]), float(best), reached, run.records[-1].number, float(sent / 1e6),
            float(run.sums("seconds")[-1]), quantiles, float(run.sums("up/bytes")[-1] / 1e6),
            float(run.sums("up/raw/bytes")[-1] / 1e6) if "up/raw/bytes" in run.metrics else None,
        )  # fmt: skip


def to_json(comparison: Comparison, path: Path | str | None = None) -> str:
    """Everything, curves and clients included; a run that missed the target has `"reached": null`."""
    runs = []
    for line in comparison.lines:
        rounds, values, megabytes, seconds = (column.tolist() for column in line.run.curve(comparison.metric))
        curve = {"rounds": rounds, "values": values, "megabytes": megabytes, "seconds": seconds}
        runs.append(_summary(line) | {"curve": curve, "clients": line.run.clients})
    head = {"metric": comparison.metric, "target": comparison.target, "target_is": comparison.reason}
    return _written(json.dumps(_without_nan(head | {"runs": runs}), indent=1), path)


def to_csv(comparison: Comparison, path: Path | str | None = None) -> str:
    """One row per run; "not reached" where a run missed the target."""
    out = io.StringIO()
    writer: Any = None
    for line in comparison.lines:
        summary = _summary(line)
        reached = summary.pop("reached") or dict.fromkeys(("round", "megabytes", "seconds"), "not reached")
        row = summary | {"metric": comparison.metric, "target": comparison.target}
        row |= {f"{key}_to_target": value for key, value in reached.items()}
        if writer is None:
            writer = csv.DictWriter(out, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
    return _written(out.getvalue(), path)


def _summary(line: Line) -> dict[str, Any]:
    run = line.run
    low, median, high = line.quantiles or (None, None, None)
    return {
        "run": run.id or run.label, "label": run.label, "algorithm": run.algorithm, "role": run.role,
        "status": run.status, "last": line.last, "best": line.best,
        "reached": vars(line.reached) if line.reached is not None else None,
        "rounds": line.rounds, "megabytes": line.megabytes, "seconds": line.seconds,
        "up_megabytes": line.up, "up_megabytes_without_channels": line.raw,
        "clients_10": low, "clients_50": median, "clients_90": high, "failures": run.failures,
    }  # fmt: skip


def _told_apart(contenders: list[Contender]) -> tuple[Contender, ...]:
    """Runs of the same name are called by their ids, or numbered where they have none."""
    count = Counter(run.label for run in contenders)
    named = []
    for place, run in enumerate(contenders, 1):
        unique = run.id or f"{run.label} ({place})"
        named.append(run if count[run.label] == 1 else replace(run, label=unique))
    return tuple(named)


def _common_metric(contenders: Sequence[Contender], wanted: str | None) -> str:
    kinds = (wanted,) if wanted else ("accuracy", "loss")
    common = set.intersection(*(run.metrics for run in contenders))
    for kind in kinds:
        for name in (kind, f"central/{kind}", f"clients/{kind}", f"train/{kind}"):
            if name in common:
                return name
    what = f"'{wanted}'" if wanted else "accuracy or loss"
    known = f"they share {', '.join(sorted(common))}" if common else "they share no metric at all"
    raise InputError(f"{what} was not measured in all {len(contenders)} runs; {known}.")


def _default_target(contenders: Sequence[Contender], metric: str) -> tuple[float, str]:
    judged = [run for run in contenders if run.role == "federated"]
    whose = "the federated runs" if judged else "the runs"
    finals = np.array([run.curve(metric)[1][-1] for run in judged or contenders])
    what = metric.rpartition("/")[2]
    if np.isnan(finals).all():
        return np.nan, f"no final {what} of {whose} is a number"
    if _lower_is_better(metric):
        return float(np.nanmin(finals) / NEAR), f"{1 / NEAR:.0%} of the lowest final {what} among {whose}"
    return float(np.nanmax(finals) * NEAR), f"{NEAR:.0%} of the best final {what} among {whose}"


def _lower_is_better(metric: str) -> bool:
    smaller = smaller_is_better(metric)
    return True if smaller is None else smaller


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinities."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _written(text: str, path: Path | str | None) -> str:
    if path is not None:
        write_atomically(Path(path), text.encode())
    return text

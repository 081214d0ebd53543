"""One run as a comparison sees it: a curve with its costs, and how its clients fare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from parley.algorithms import algorithms
from parley.algorithms.baselines import LocalOnly
from parley.core.errors import InputError
from parley.engine.run import Run
from parley.store.records import RoundRecord
from parley.store.runs import RunStore
from parley.theory.theta import Array

Role = Literal["federated", "pooled", "alone"]
"""A federated method, a baseline on pooled data, or clients on their own."""


@dataclass(frozen=True, eq=False)
class Contender:
    """A run's records with what is known about the run."""

    label: str
    """What tables and figures call it."""
    records: Sequence[RoundRecord]
    algorithm: str = ""
    """Registered name of the method, where known."""
    role: Role = "federated"
    id: str = ""
    """Its name in the run store, if it was stored."""
    status: str = "finished"
    clients: dict[str, float] = field(init=False)
    """The last values of `clients/accuracy`, by client; empty if never measured."""
    failures: int = field(init=False)
    """Replies that never came or could not be used, all rounds."""

    def __post_init__(self) -> None:
        if not self.records:
            raise InputError(f"the run '{self.label}' has recorded nothing yet; wait for its first round.")
        measured = (r.metrics["clients/accuracy"] for r in reversed(self.records) if "clients/accuracy" in r.metrics)
        last = next(measured, None)
        object.__setattr__(self, "clients", dict(last.clients) if last is not None else {})
        object.__setattr__(self, "failures", sum(len(record.failures) for record in self.records))

    @property
    def metrics(self) -> set[str]:
        return {name for record in self.records for name in record.metrics}

    def curve(self, metric: str) -> tuple[Array, Array, Array, Array]:
        """Where the metric was measured: rounds, values, megabytes (up and down) and training seconds until then."""
        up, down, seconds = (self.sums(name) for name in ("up/bytes", "down/bytes", "seconds"))
        at = [place for place, record in enumerate(self.records) if metric in record.metrics]
        rounds = np.array([self.records[place].number for place in at], dtype=np.float64)
        values = np.array([self.records[place].metrics[metric].value for place in at], dtype=np.float64)
        return rounds, values, (up + down)[at] / 1e6, seconds[at]

    def sums(self, metric: str) -> Array:
        """The metric added up until the end of each record; 0 where it was not measured."""
        each = [record.metrics[metric].value if metric in record.metrics else 0.0 for record in self.records]
        return np.cumsum(np.array(each, dtype=np.float64))

    @classmethod
    def of_run(cls, run: Run) -> Contender:
        """From a run just trained."""
        kind = type(run.algorithm)
        name = next((known for known in algorithms if algorithms[known] is kind), kind.__name__)
        return cls(run.name or name, run.records, name, role(kind), run.id or "", run.status)

    @classmethod
    def stored(cls, store: RunStore, run: str) -> Contender:
        """From the run store, by id, by the beginning of an id, or 'last'."""
        info = store.info(run)
        settings = info.config.get("algorithm", {})
        name = str(settings.get("name", "")) if isinstance(settings, dict) else str(settings)
        part = role(algorithms[name]) if name in algorithms else "federated"
        return cls(info.name, store.records(info.id), name, part, info.id, info.status)


def role(method: type) -> Role:
    """What a method is in a comparison."""
    if issubclass(method, LocalOnly):
        return "alone"
    return "pooled" if getattr(method, "pooled", False) else "federated"

"""What a list shows of runs, on the terminal and on a page: runs in groups of seeds, each with its last numbers."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from parley.engine.roll_call import is_result, stored_coverages
from parley.engine.stopping import headline_of
from parley.store.runs import RunInfo, RunStore
from parley.study.seeds import by_study, half_interval, seeds_text

Numbers = Mapping[str, Any]
Seen = MutableMapping[str, tuple[int, Numbers]]
"""Run -> its last round and its numbers then, which are not read again until there is another round."""

SILENT = ("centralised", "local-only", "lookahead", "minibatch-sgd")
"""Baselines in which no model is sent, by name: a list must not wait for what would tell."""


@dataclass(frozen=True)
class Entry:
    """A run and its numbers."""

    info: RunInfo
    numbers: Numbers
    """The run's summary; of one that is going on or whose process died, what its stored rounds say."""

    @property
    def headline(self) -> str:
        """The metric that a list shows of it: what it is judged by; empty if nothing was measured."""
        if self.info.headline in self.numbers:
            return self.info.headline
        wanted = headline_of([self.info.config])
        judged = [name for name in self.numbers if is_result(name)]
        usual = [name for name in judged if not name.endswith("/loss")] or judged or [""]
        return next((name for name in judged if wanted in (name, name.rpartition("/")[2])), usual[0])

    @property
    def coverage(self) -> str:
        """`3 of 5`: over how many clients the headline's mean is, where some have no value; else empty."""
        return covered(self.numbers, self.headline)

    @property
    def sent(self) -> float | None:
        """Bytes that clients sent; None where they send no model, or if it was not measured."""
        method = self.info.config.get("algorithm")
        name = method.get("name") if isinstance(method, Mapping) else method
        return None if name in SILENT else self.numbers.get("up/bytes")


@dataclass(frozen=True)
class Seeds:
    """Runs that differ in their seeds alone, at least one; their means are over those that finished."""

    entries: Sequence[Entry]

    @property
    def finished(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.info.status == "finished"]

    @property
    def title(self) -> str:
        infos = [entry.info for entry in self.entries]
        return f"{infos[0].name}, seeds {seeds_text(infos)}"

    @property
    def done(self) -> str:
        return f"{len(self.finished)} of {len(self.entries)} done"

    @property
    def headline(self) -> str:
        return self.finished[0].headline if self.finished else ""

    @property
    def coverage(self) -> str:
        """Those of the runs that finished, `3 of 5, 2 of 5` where they differ."""
        return ", ".join(dict.fromkeys(entry.coverage for entry in self.finished if entry.coverage))

    @property
    def sent(self) -> float | None:
        """The mean of bytes that clients sent; None as for one run."""
        values = [entry.sent for entry in self.finished if entry.sent is not None]
        return fmean(values) if values else None

    def mean(self, name: str) -> float | None:
        """None if none of them measured it."""
        values = self._values(name)
        return fmean(values) if values else None

    def half_interval(self, name: str) -> float | None:
        """Half of the mean's 95% interval; None for fewer than two."""
        values = self._values(name)
        return half_interval(values) if len(values) > 1 else None

    def _values(self, name: str) -> list[float]:
        return [entry.numbers[name] for entry in self.finished if name in entry.numbers]


def entry(store: RunStore, info: RunInfo, seen: Seen | None = None) -> Entry:
    """The run with its numbers, in a moment however long it is."""
    summary = info.summary  # of a run that was cut off, what it said when it began
    ended = info.status not in ("running", "interrupted") and info.rounds > 0
    if ended and summary and summary.get("rounds", info.rounds) == info.rounds:
        return Entry(info, summary)
    known = None if seen is None else seen.get(info.id)
    if known is not None and known[0] == info.rounds > 0:  # before round 1 it may yet be evaluated
        return Entry(info, known[1])
    latest = store.latest(info.id)
    missing = stored_coverages(store, info.id, list(latest), store.failures(info.id))
    numbers = latest | {f"{name}/clients": words for name, words in missing.items()}
    if seen is not None:
        seen[info.id] = info.rounds, numbers
    return Entry(info, numbers)


def covered(numbers: Numbers, metric: str) -> str:
    """`3 of 5`: over how many clients a mean is, as a summary says it; empty where everybody has a value."""
    return str(numbers.get(f"{metric}/clients", ""))


def listing(store: RunStore, seen: Seen | None = None) -> list[Seeds]:
    """All runs of a store, in the order of their groups' first runs."""
    return [Seeds([entry(store, info, seen) for info in group]) for group in by_study(store.runs())]

"""Runs that differ in their seeds alone are one group, wherever runs are listed, compared or reported."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from parley.engine.roll_call import is_result, stored_coverages
from parley.engine.stopping import headline_of
from parley.store.runs import RunInfo, RunStore

_INDIFFERENT = ("name", "seed", "runtime", "store", "logging", "listeners", "plugin_digests", "data_fingerprint")
"""What says how a run is carried out, or follows from the rest."""
TWO_SEEDS = "Two seeds are too few for an interval, which is 6.4 times their difference to either side; train more"
"""12.7, the 97.5% quantile of Student's t with one degree of freedom, over 2: |a - b| / sqrt(2) is the deviation."""
SILENT = ("centralised", "local-only", "lookahead", "minibatch-sgd")
"""Baselines in which no model is sent, by name: a list must not wait for what would tell."""
Numbers = Mapping[str, Any]
Seen = MutableMapping[str, tuple[int, Numbers]]
"""Run -> its last round and its numbers then, which are not read again until there is another round."""


@dataclass(frozen=True)
class SeedMean:
    """The mean over seeds and half the width of its 95% interval (Student's t; NaN for one seed)."""

    value: float
    half: float
    seeds: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> SeedMean:
        seeds = np.asarray(values, dtype=np.float64)
        half, n = np.nan, len(seeds)
        if n > 1:
            from scipy.special import stdtrit

            half = stdtrit(n - 1, 0.975) * seeds.std(ddof=1) / np.sqrt(n)
        return cls(float(seeds.mean()), float(half), tuple(seeds.tolist()))

    def __sub__(self, other: SeedMean) -> SeedMean:
        """The difference, seed by seed."""
        return SeedMean.of([a - b for a, b in zip(self.seeds, other.seeds, strict=True)])

    def plain(self) -> dict[str, Any]:
        return {"mean": self.value, "half": self.half, "seeds": self.seeds}


class _HasStatus(Protocol):
    @property
    def status(self) -> str: ...


_Run = TypeVar("_Run", bound=_HasStatus)


def by_study(infos: Iterable[RunInfo]) -> list[list[RunInfo]]:
    """The runs in groups, in the order of their first runs: on the same data, or on data that each seed dealt anew.

    A group has a run for each of its seeds, in their order: the newest, of those that finished if any did. What was
    trained with the same seed before is a group of its own.
    """
    fixed: dict[str, list[RunInfo]] = {}
    for info in infos:
        fixed.setdefault(_alike(info.name, info.config), []).append(info)
    dealt: dict[str, list[RunInfo]] = {}
    for key, runs in fixed.items():
        alone = len({info.config.get("seed") for info in runs}) == 1
        for info in runs:
            dealt.setdefault(_alike(info.name, without_seed(info.config)) if alone else key, []).append(info)
    return [group for runs in dealt.values() for group in _once(runs)]


def _once(runs: Sequence[RunInfo]) -> list[list[RunInfo]]:
    """The runs, oldest first, dealt to groups in which no seed occurs twice."""
    groups: list[dict[Any, RunInfo]] = []
    latest_first = list(reversed(runs))
    for info in sorted(latest_first, key=lambda info: info.status != "finished"):
        seed = info.config.get("seed")
        free = next((group for group in groups if seed not in group), None)
        if free is None:
            groups.append(free := {})
        free[seed] = info
    return [sorted(group.values(), key=lambda info: (_seed(info) is None, _seed(info) or 0)) for group in groups]


def _alike(name: str, config: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in config.items() if key not in _INDIFFERENT}
    if isinstance(start := kept.get("init_from"), Mapping):
        kept["init_from"] = {key: value for key, value in start.items() if key not in ("store", "digest")}
    return json.dumps([name, kept], sort_keys=True, default=str)


def _seed(info: RunInfo) -> int | None:
    seed = info.config.get("seed")
    return seed if isinstance(seed, int) else None


def without_seed(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """A study without a seed of the data that is its own, so that another seed deals the data anew."""
    data = resolved.get("data")
    if not isinstance(data, Mapping) or data.get("seed") != resolved.get("seed"):
        return dict(resolved)
    return dict(resolved) | {"data": {key: value for key, value in data.items() if key != "seed"}}


def counted(runs: Sequence[_Run]) -> list[_Run]:
    """The runs of a group that means are taken over: those that finished, or all while none has."""
    return [run for run in runs if run.status == "finished"] or list(runs)


def selected(store: RunStore, words: Sequence[str]) -> list[RunInfo]:
    """The runs meant: ids, beginnings of ids, 'last', or a study's name for all its runs.

    None for all of the store but trials of a search, which are no results: the best of many is better by chance.
    """
    every = store.runs()
    if not words:
        return [info for info in every if not info.trial]
    chosen = []
    for word in words:
        named = [info for info in every if info.name == word] if word != "last" else []
        chosen += named or [store.info(word)]
    return list({info.id: info for info in chosen}.values())


def seeds_text(infos: Iterable[RunInfo]) -> str:
    """The seeds as one would write them: `0-4, 7`."""
    seeds = sorted({seed for info in infos if (seed := _seed(info)) is not None})
    spans: list[list[int]] = []
    for seed in seeds:
        if spans and spans[-1][1] == seed - 1:
            spans[-1][1] = seed
        else:
            spans.append([seed, seed])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


@dataclass(frozen=True)
class Entry:
    """A run as a list shows it: with its last numbers."""

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
    """A group of runs as a list shows it, at least one run; means are over those that finished."""

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
        return float(np.mean(values)) if values else None

    def mean(self, name: str) -> SeedMean | None:
        """None if none of them measured it."""
        values = [entry.numbers[name] for entry in self.finished if name in entry.numbers]
        return SeedMean.of(values) if values else None


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

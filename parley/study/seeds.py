"""Runs that differ in their seeds alone are one group, wherever runs are listed, compared or reported."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from parley.store.runs import RunInfo, RunStore
from parley.study.toml_text import without_seed

_INDIFFERENT = ("name", "seed", "runtime", "store", "logging", "listeners", "plugin_digests", "data_fingerprint")
"""What says how a run is carried out, or follows from the rest."""
TWO_SEEDS = "Two seeds are too few for an interval, which is 6.4 times their difference to either side; train more"
"""12.7, the 97.5% quantile of Student's t with one degree of freedom, over 2: |a - b| / sqrt(2) is the deviation."""


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
        place = next((group for group in groups if seed not in group), None)
        if place is None:
            groups.append(place := {})
        place[seed] = info
    return [sorted(group.values(), key=lambda info: (_seed(info) is None, _seed(info) or 0)) for group in groups]


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
    found = []
    for word in words:
        named = [info for info in every if info.name == word] if word != "last" else []
        found += named or [store.info(word)]
    return list({info.id: info for info in found}.values())


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


def half_interval(values: Sequence[float]) -> float:
    """Half the width of the 95% interval of their mean (Student's t); NaN for one value."""
    from scipy.special import stdtrit

    seeds = np.asarray(values, dtype=np.float64)
    if len(seeds) < 2:
        return float("nan")
    return float(stdtrit(len(seeds) - 1, 0.975) * seeds.std(ddof=1) / np.sqrt(len(seeds)))


def _seed(info: RunInfo) -> int | None:
    seed = info.config.get("seed")
    return seed if isinstance(seed, int) else None


def _alike(name: str, config: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in config.items() if key not in _INDIFFERENT}
    if isinstance(start := kept.get("init_from"), Mapping):
        kept["init_from"] = {key: value for key, value in start.items() if key not in ("store", "digest")}
    return json.dumps([name, kept], sort_keys=True, default=str)

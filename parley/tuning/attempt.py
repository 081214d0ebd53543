"""A trial is a run like any other: looked up if it is there, resumed if it was begun, and its score if it diverged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parley.core.errors import QuorumError
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.runtimes import Job, Runtime
from parley.store.runs import RunInfo, RunStore
from parley.study.difference import ending
from parley.study.study import Study
from parley.study.train import train
from parley.theory.theta import Array


@dataclass(frozen=True, eq=False)
class Attempt:
    """What a study gave: every metric's rounds and values; nothing where most clients sent NaN."""

    curves: Mapping[str, tuple[Array, Array]]
    run: str = ""
    """The run's id, where it was stored."""
    status: str = "finished"
    until: int = 0
    """The round before the one in which most clients sent NaN."""

    @property
    def rounds(self) -> int:
        return int(max((rounds[-1] for rounds, _ in self.curves.values()), default=self.until))


def attempt(
    study: Study,
    store: RunStore | None,
    listeners: Sequence[Listener] = (),
    execute: Callable[[Job], Runtime] | None = None,
    trial: str = "",
    *,
    extend: bool = False,
) -> Attempt:
    """Train the study, go on with a run of it that was interrupted, or look up one that has finished.

    It must be exactly this study's: one of more rounds, or one that another target ended, is left as it is. With
    `extend` a run of fewer rounds goes on, and of one of more rounds the first are given. Settings that diverge are an
    answer, not an error. `execute` and `trial` are those of `train`.
    """
    begun, config = None, study.resolved()
    free = {"rounds": None} if extend else {}

    def ours(info: RunInfo) -> bool:
        return ending(info.config) | free == ending(config) | free

    def reached(info: RunInfo) -> bool:
        return ours(info) and (not extend or info.rounds >= study.rounds)

    if store is not None:
        done = store.finished(study.fingerprint(), reached)
        if done is not None:
            return Attempt(_until(store.curves(done), study.rounds), done)
        begun = store.unfinished(study.fingerprint(), study.rounds if extend else 0, ours)
    try:
        run = train(study, store=store, listeners=listeners, resume=begun, execute=execute, trial=trial)
    except QuorumError:  # most clients sent NaN
        ended = None if store is None else store.unfinished(study.fingerprint(), fits=ours)
        if store is None or ended is None:
            return Attempt({}, status="stopped")
        return Attempt({}, ended, "stopped", store.info(ended).rounds)
    return Attempt(_until(curves_of(run), study.rounds), run.id or "", run.status)


def curves_of(run: Run) -> dict[str, tuple[Array, Array]]:
    return {name: run.series(name) for name in run.metrics()}


def _until(curves: Mapping[str, tuple[Array, Array]], last: int) -> dict[str, tuple[Array, Array]]:
    """The curves up to this round."""
    return {name: (rounds[rounds <= last], values[rounds <= last]) for name, (rounds, values) in curves.items()}


def mean_of_last(values: Array, share: float) -> float:
    """The mean over this last share of the values, at least one; NaN if one of them is none."""
    return float(values[-max(round(len(values) * share), 1) :].mean()) if len(values) else float(np.nan)

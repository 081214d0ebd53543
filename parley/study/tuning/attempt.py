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
from parley.study.description import Study
from parley.study.difference import ending
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
    study: Study, store: RunStore | None, listeners: Sequence[Listener] = (),
    execute: Callable[[Job], Runtime] | None = None, trial: str = "",
) -> Attempt:  # fmt: skip
    """Train the study, go on with a run of it that was interrupted, or look up one that has finished.

    It must be exactly this study's: one of more rounds, or one that another target ended, is left as it is. Settings
    that diverge are an answer, not an error. `execute` and `trial` are those of `train`.
    """
    begun, config = None, study.resolved()

    def ours(info: RunInfo) -> bool:
        return ending(info.config) == ending(config)

    if store is not None:
        done = store.finished(study.fingerprint(), ours)
        if done is not None:
            return Attempt(store.curves(done), done)
        begun = store.unfinished(study.fingerprint(), fits=ours)
    try:
        run = train(study, store=store, listeners=listeners, resume=begun, execute=execute, trial=trial)
    except QuorumError:  # most clients sent NaN
        ended = None if store is None else store.unfinished(study.fingerprint(), fits=ours)
        if store is None or ended is None:
            return Attempt({}, status="stopped")
        return Attempt({}, ended, "stopped", store.info(ended).rounds)
    return Attempt(curves_of(run), run.id or "", run.status)


def curves_of(run: Run) -> dict[str, tuple[Array, Array]]:
    return {name: run.series(name) for name in run.metrics()}


def mean_of_last(values: Array, share: float) -> float:
    """The mean over this last share of the values, at least one; NaN if one of them is none."""
    return float(values[-max(round(len(values) * share), 1) :].mean()) if len(values) else float(np.nan)

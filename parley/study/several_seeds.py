"""A study trained once with each of several seeds, side by side."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from parley.store.runs import RunStore
from parley.study.difference import ending
from parley.study.side_by_side import Report, Workspace, side_by_side
from parley.study.study import Study
from parley.study.toml import load_study
from parley.study.train import train
from parley.study.warm_start import WarmStart


@dataclass(frozen=True)
class Seed:
    """One of them: how the study is read, and what becomes of a run of it that is there."""

    path: Path
    overrides: tuple[str, ...]
    resume: bool
    source: str | None = None
    """The run whose weights it starts from, once and for all seeds."""

    def study(self) -> Study:
        study = load_study(self.path, self.overrides)
        start = study.start
        if self.source is not None and isinstance(start, WarmStart):
            return replace(study, init_from=replace(start, run=self.source))
        return study

    def perform(self, workspace: Workspace, report: Report) -> str:
        """The run's id."""
        study = workspace.fitted(self.study())
        done, again = stored_run(workspace.store, study) if self.resume else (None, False)
        return done or str(train(study, store=workspace.store, resume=again, execute=workspace.execute(study)).id)


def stored_run(store: RunStore, study: Study) -> tuple[str | None, bool]:
    """The run of the study that has finished, or had its rounds and more, and else whether there is one to go on with.

    Trials of a search are no results. One that ended sooner for a target that the study does not have is gone on with.
    """
    fingerprint, config = study.fingerprint(), study.resolved()
    done = store.finished(
        fingerprint,
        lambda info: not info.trial and (info.rounds >= study.rounds or ending(info.config) == ending(config)),
    )
    return done, done is None and store.unfinished(fingerprint, study.rounds) is not None


def train_seeds(seeds: Sequence[Seed], like: Study, store: Path, runs: int) -> Generator[tuple[int, str], None, None]:
    """Train them, at most so many at a time; each one's place and run as it ends."""
    return side_by_side(enumerate(seeds), like, store, min(runs, len(seeds)))

"""The search: Optuna proposes, runs of the store answer, methods take turns with equal budgets.

Optuna's book is a file beside the store, `tune.db`: the store takes no tables of others, and Optuna's have no
checksums. Nothing is lost with it but the order of proposals, because trials are runs: a search begun anew finds them.
A proposal follows from the sampler's seed, the trial's number and what was found before, not from how often the search
was interrupted. One that was cut off is proposed again with the same settings, and its run goes on from its checkpoint.
"""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from parley.core.errors import InputError, ParleyError
from parley.core.extras import how_to_install
from parley.core.key import Key
from parley.core.show import Brief
from parley.store import locks
from parley.store.database import explained, open_to_write
from parley.store.runs import RunStore
from parley.study.side_by_side import Report, Workspace, side_by_side
from parley.study.study import Study
from parley.tuning.candidates import Candidate
from parley.tuning.trial import Outcome, Trial

BOOK = "tune.db"


@dataclass(frozen=True)
class TrialResult:
    """One trial: what was set, and what came of it."""

    method: str
    number: int
    settings: dict[str, Any]
    score: float | None
    """None where it diverged."""
    rounds: int
    run: str
    pruned: bool
    coverage: str = ""
    """`3 of 5`: the clients behind a score that is a mean over clients and lacks some."""


@dataclass(frozen=True, repr=False)
class SearchResult(Brief):
    """All trials of a method, in their order, and the best of them."""

    candidate: Candidate
    trials: list[TrialResult] = field(default_factory=list)

    @property
    def best(self) -> TrialResult | None:
        """None where all diverged; of several as good the first."""
        known = [trial for trial in self.trials if trial.score is not None and not trial.pruned]
        sign = -1 if self.candidate.smaller else 1
        return max(known, key=lambda trial: sign * (trial.score or 0.0), default=None)

    def study(self) -> Study:
        """The study with the best settings, as its user would train it; with seeds that the search did not use."""
        if self.best is None:
            raise InputError(f"all trials of {self.candidate.method} diverged; search smaller steps.")
        return self.candidate.study(self.best.settings, final=True)

    @property
    def rounds(self) -> int:
        """Trained in all its trials."""
        return sum(trial.rounds for trial in self.trials)

    def known(self, runs: Collection[str]) -> SearchResult:
        """The same without the names of runs that are not in the store any more."""
        return replace(self, trials=[trial if trial.run in runs else replace(trial, run="") for trial in self.trials])


OnTrial = Callable[[TrialResult, SearchResult], None]
"""Called with each trial as it ends, and with all of its method."""


def search(
    candidates: Sequence[Candidate],
    store: RunStore,
    report: OnTrial = lambda candidate, all: None,
) -> list[SearchResult]:
    """Try settings until every method has had its trials; `report` is given each one as it ends."""
    optuna = _optuna()
    lock = store.path.with_name("tune.lock")
    if not locks.acquire(lock):
        raise InputError(f"another search is going on in {store.path.parent}; wait for it or name another --store.")
    try:
        book = store.path.with_name(BOOK)
        open_to_write(book).close()  # made for its user alone, as all that lies beside the store
        with _sqlite_errors(book), _storage(optuna, book) as storage:
            books = [_Book(optuna, storage, candidate) for candidate in candidates]
            tuning = candidates[0].tuning
            if tuning.workers == 1:
                _alone(books, Workspace(store), report)
            else:
                _together(books, store.path, tuning.workers, report)
            kept = {info.id for info in store.runs()}
            return [book.result().known(kept) for book in books]
    finally:
        locks.release(lock)


@contextmanager
def _storage(optuna: Any, book: Path) -> Iterator[Any]:
    storage = optuna.storages.RDBStorage(f"sqlite:///{book}")
    try:
        yield storage
    finally:
        storage.engine.dispose()


@contextmanager
def _sqlite_errors(book: Path) -> Iterator[None]:
    """SQLite's errors as sentences, out of whatever Optuna and SQLAlchemy have wrapped them in."""
    with explained(book, "the book of trials"):
        try:
            yield
        except ParleyError:
            raise
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, sqlite3.Error):
                cause = cause.__cause__ or cause.__context__
            if cause is None:
                raise
            raise cause from error


class _Book:
    """What Optuna knows about one method."""

    def __init__(self, optuna: Any, storage: Any, candidate: Candidate) -> None:
        self.candidate, self._optuna = candidate, optuna
        direction = "minimize" if candidate.smaller else "maximize"
        self.study = optuna.create_study(
            storage=storage,
            study_name=candidate.name(),
            direction=direction,
            load_if_exists=True,
            pruner=_pruner(optuna, candidate),
        )
        states = optuna.trial.TrialState
        for old in self.study.get_trials(deepcopy=False, states=(states.RUNNING,)):  # the process that had it is gone
            self.study.tell(old.number, state=states.FAIL)
            if "settings" in old.user_attrs:  # or it was cut off while it was proposed, and is proposed again
                self.study.enqueue_trial(old.params)
        self._over, self.asked = (states.COMPLETE, states.PRUNED), 0
        self.asked = len(self._ended())

    @property
    def name(self) -> str:
        return str(self.study.study_name)

    @property
    def open(self) -> bool:
        return self.asked < self.candidate.trials

    def ask(self) -> tuple[Any, dict[str, Any]]:
        """The next trial and its settings; where there are points alone, none is tried twice."""
        states = self._optuna.trial.TrialState
        trials = self.study.get_trials(deepcopy=False)
        taken = [known.params for known in trials if known.state not in (states.FAIL, states.WAITING)]
        if self.candidate.tuning.sampler == "grid" and not any(known.state == states.WAITING for known in trials):
            self._enqueue(taken)
        trial, settings = self._proposed()
        if self.candidate.points is not None and trial.params in taken:
            self.study.tell(trial, state=states.FAIL)
            self._enqueue(taken)
            trial, settings = self._proposed()
        trial.set_user_attr("settings", settings)
        self.asked += 1
        return trial, settings

    def _enqueue(self, taken: Sequence[dict[str, Any]]) -> None:
        """The next point of the grid that was not taken."""
        self.study.enqueue_trial(next(point for point in _grid(self.candidate) if point not in taken))

    def _proposed(self) -> tuple[Any, dict[str, Any]]:
        """What waits, or what the sampler says.

        It is made anew for every trial, by how many there were before: what it drew, and trials that were cut off, are
        not to be seen in what is proposed.
        """
        tuning = self.candidate.tuning
        seed = int(Key(tuning.sampler_seed).fold("trial", self.asked).numpy().integers(2**31))
        kind = self._optuna.samplers.TPESampler if tuning.sampler == "tpe" else self._optuna.samplers.RandomSampler
        self.study.sampler = kind(seed=seed)
        trial = self.study.ask()
        return trial, {path: space.suggested(trial, path) for path, space in self.candidate.spaces.items()}

    def record(self, trial: Any, outcome: Outcome) -> TrialResult:
        """The end of a trial; one that diverged is as bad as can be."""
        trial.set_user_attr("run", outcome.run)
        trial.set_user_attr("rounds", outcome.rounds)
        trial.set_user_attr("diverged", outcome.score is None)
        trial.set_user_attr("coverage", outcome.coverage)
        if outcome.pruned:
            self.study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
        else:
            worst = float("inf") if self.candidate.smaller else -float("inf")
            self.study.tell(trial, worst if outcome.score is None else outcome.score)
        return next(each for each in reversed(self.result().trials) if each.number == trial.number)

    def result(self) -> SearchResult:
        return SearchResult(self.candidate, [self._result(trial) for trial in self._ended()])

    def _ended(self) -> list[Any]:
        return list(self.study.get_trials(deepcopy=False, states=self._over))

    def _result(self, trial: Any) -> TrialResult:
        about, pruned = trial.user_attrs, trial.state == self._optuna.trial.TrialState.PRUNED
        score = None if about.get("diverged") or trial.value is None else float(trial.value)
        return TrialResult(
            self.candidate.method,
            trial.number,
            dict(about["settings"]),
            score,
            int(about.get("rounds", 0)),
            str(about.get("run", "")),
            pruned,
            str(about.get("coverage", "")),
        )


def _alone(books: list[_Book], workspace: Workspace, report: OnTrial) -> None:
    while (book := _next(books)) is not None:
        trial, settings = book.ask()
        outcome = Trial(book.candidate, settings, book.name).perform(workspace, _judge(trial))
        report(book.record(trial, outcome), book.result())


def _together(books: list[_Book], store: Path, workers: int, report: OnTrial) -> None:
    """This process alone writes Optuna's book, so that proposals do not depend on which worker is quicker to ask."""

    def asked() -> Iterator[tuple[tuple[_Book, Any], Trial]]:
        while (book := _next(books)) is not None:
            trial, settings = book.ask()
            yield (book, trial), Trial(book.candidate, settings, book.name)

    left = sum(book.candidate.trials - book.asked for book in books)
    like = books[0].candidate.study()
    count = max(1, min(workers, left))
    with closing(side_by_side(asked(), like, store, count, lambda token, *values: _judge(token[1])(*values))) as ended:
        for (book, trial), outcome in ended:
            report(book.record(trial, outcome), book.result())


def _judge(trial: Any) -> Report:
    def report(round: int, value: float) -> bool:
        trial.report(value, round)
        return bool(trial.should_prune())

    return report


def _next(books: list[_Book]) -> _Book | None:
    """The method that has had the fewest trials, so that all have had as many whenever the search is cut short."""
    return min((book for book in books if book.open), key=lambda book: book.asked, default=None)


def _grid(candidate: Candidate) -> list[dict[str, int]]:
    """All points of the grid, by their places, in an order that the sampler's seed decides."""
    ranges = [range(len(space.points)) for space in candidate.spaces.values()]
    points = [dict(zip(candidate.spaces, point, strict=True)) for point in product(*ranges)]
    order = Key(candidate.tuning.sampler_seed).fold("grid").numpy().permutation(len(points))
    return [points[index] for index in order]


def _pruner(optuna: Any, candidate: Candidate) -> Any:
    kinds = {
        "none": optuna.pruners.NopPruner,
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=4),
        "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(
            min_resource=max(1, candidate.study().rounds // 10), reduction_factor=3
        ),
    }
    return kinds[candidate.tuning.pruner]()


def _optuna() -> Any:
    try:
        optuna: Any = importlib.import_module("optuna")
    except ImportError:
        raise InputError(f"searching needs Optuna; {how_to_install('tune')}.") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna

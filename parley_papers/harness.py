"""What a study is: a function that measures something and says, check by check, whether it is as it should be.

    @study("001/conformance", scales={"smoke": "four clients, d = 5", "cpu": "..."})
    def conformance(scale: Scale, context: StudyContext) -> StudyResult:
        \"\"\"Every local update method reaches the minimiser of its surrogate.\"\"\"
        ...
        return context.result([at_most("distance", measured, 1e-10)], figures={"curves": figure}, data={...})

A study is judged by its checks alone: named statements with the measured and the expected value. A statement that a
scale is too small for is listed as `unchecked`, never as passed. The figures and the data are for readers.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
from rich.progress import track

import parley as pl
from parley_papers.checks import Check as Check
from parley_papers.checks import at_least as at_least
from parley_papers.checks import at_most as at_most
from parley_papers.checks import holds as holds
from parley_papers.checks import near as near
from parley_papers.checks import unchecked as unchecked
from parley_papers.versions import numbered, titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

Scale = Literal["smoke", "cpu", "paper"]
"""smoke: seconds, for tests; cpu: minutes on two cores; paper: the paper's own sizes."""
SCALES: tuple[Scale, ...] = get_args(Scale)
STORE = "runs.db"
"""The store beside the studies' folders, which they share."""
T = TypeVar("T")


def claims(checks: Iterable[Check], scale: Scale) -> list[Check]:
    """A paper's statements about training: judged at all scales but smoke, which is too small for them."""
    return [unchecked(check) if scale == "smoke" else check for check in checks]


@dataclass(frozen=True)
class StudyResult:
    """What a study found."""

    study: str
    scale: Scale
    checks: tuple[Check, ...]
    figures: dict[str, Figure] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    """The numbers behind the figures: plain lists, numbers and text (arrays are turned into lists)."""
    seconds: float = 0.0
    trials: int = 0
    kept: int = 0
    """Trials, and how many of them were kept ones that were not trained again."""
    files: tuple[Path, ...] = ()
    """What was written."""

    @property
    def passed(self) -> bool:
        """No statement that was checked failed."""
        return all(check.passed is not False for check in self.checks)

    def save(self, out: Path | str) -> tuple[Path, ...]:
        """Write `<out>/<study>/<scale>.json` and `<scale>-<figure>.png` beside it; each is whole or not there."""
        folder = Path(out) / titled(self.study)
        body = {
            "study": titled(self.study),
            "scale": self.scale,
            "passed": self.passed,
            "seconds": self.seconds,
            "trials": self.trials,
            "kept trials": self.kept,
            "checks": [asdict(check) for check in self.checks],
            "data": self.data,
        }
        files = [folder / f"{self.scale}.json"]
        pl.core.write_atomically(files[0], json.dumps(_plain(body), indent=1, allow_nan=False).encode())
        for name, figure in self.figures.items():
            files.append(folder / f"{self.scale}-{name}.png")
            pl.report.save_figure(figure, files[-1])
        return tuple(files)


@dataclass
class StudyContext:
    """What a study is given besides its scale."""

    study: str
    scale: Scale
    console: Console | None = None
    """Where progress may be shown; None keeps quiet."""
    store: Path | None = None
    """The run store that trials are kept in; None keeps none."""
    workers: int | None = None
    """Processes that train at a time; by default one per core."""
    keep: Path | None = None
    """The folder that finished trials are taken from and written to, besides those that come with the package."""
    trials: int = 0
    kept: int = 0
    """How many trials the study asked for so far, and how many of them were kept ones."""
    begun: float = field(default_factory=time.perf_counter)

    def result(
        self,
        checks: Sequence[Check],
        figures: Mapping[str, Figure] | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> StudyResult:
        """The study's result; its time ends here."""
        names = [check.name for check in checks]
        if len(set(names)) != len(names) or all(check.passed is None for check in checks):
            raise pl.InputError(
                f"study '{self.study}' needs checks, one of them judged, with a name of their own each."
            )
        seconds = time.perf_counter() - self.begun
        return StudyResult(
            self.study,
            self.scale,
            tuple(checks),
            dict(figures or {}),
            dict(data or {}),
            seconds,
            self.trials,
            self.kept,
        )

    def track(self, items: Iterable[T], what: str, count: int | None = None) -> Iterator[T]:
        """The items one by one, with a progress bar where there is a terminal; `count` is for items without length."""
        if self.console is None or not self.console.is_terminal:
            return iter(items)
        return iter(track(items, what, count, console=self.console, transient=True))

    def trained(self, anew: int, kept: int) -> None:
        """Counts trials: how many are trained, or looked up in the store, and how many are kept ones."""
        self.trials, self.kept = self.trials + anew + kept, self.kept + kept


@dataclass(frozen=True)
class RegisteredStudy:
    """A registered study."""

    name: str
    about: str
    """The first line of its docstring."""
    scales: dict[Scale, str]
    """What each scale it offers means."""
    measure: Callable[[Scale, StudyContext], StudyResult]


studies: pl.Registry[RegisteredStudy] = pl.Registry("study")


def study(
    name: str, *, scales: Mapping[Scale, str]
) -> Callable[[Callable[[Scale, StudyContext], StudyResult]], Callable[[Scale, StudyContext], StudyResult]]:
    """Register a study under `name` with a phrase about each of its scales."""

    def register(measure: Callable[[Scale, StudyContext], StudyResult]) -> Callable[[Scale, StudyContext], StudyResult]:
        about = (measure.__doc__ or "").strip().split("\n")[0]
        if not about:
            raise pl.InputError(f"study '{name}' needs a docstring whose first line says what it shows.")
        studies(name)(RegisteredStudy(name, about, dict(scales), measure))
        return measure

    return register


def matching(pattern: str) -> list[str]:
    """The studies meant: one by its name, all of a paper by its authors (`su2023`) or number (`000`), or `all`."""
    names, pattern = list(studies), numbered(pattern)
    if pattern == "all":
        return names
    chosen = [name for name in names if name == pattern or name.startswith(f"{pattern.rstrip('/')}/")]
    if not chosen:
        wanted = titled(pattern)
        raise pl.InputError(f"unknown study '{wanted}': {pl.core.nearest(wanted, map(titled, names))}")
    return chosen


def run_study(
    name: str,
    scale: str = "smoke",
    out: Path | str | None = None,
    console: Console | None = None,
    workers: int | None = None,
    keep: Path | str | None = None,
) -> StudyResult:
    """Run a study; `out` is the folder for its JSON, its figures and the store of what it trains, `runs.db`.

    Without `out` nothing is written. `workers`: processes that train at a time, by default one per core. `keep`: a
    folder that finished trials are taken from and written to, in a file per study.
    """
    entry = studies[numbered(name)]
    if scale not in entry.scales:
        raise pl.InputError(f"study '{titled(name)}' has no scale '{scale}': {pl.core.nearest(scale, entry.scales)}")
    chosen: Scale = next(known for known in entry.scales if known == scale)
    store = None if out is None else Path(out) / STORE
    kept = None if keep is None else Path(keep)
    result = entry.measure(chosen, StudyContext(entry.name, chosen, console, store, workers, kept))
    if out is None:
        return result
    return replace(result, files=result.save(out))


def _plain(value: Any) -> Any:
    """For JSON: arrays as lists, numbers that are not finite as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value

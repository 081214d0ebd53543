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

from parley.core.errors import InputError, nearest
from parley.core.files import write_atomically
from parley.core.registry import Registry
from parley.engine.progress import track
from parley.report.files import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

Scale = Literal["smoke", "cpu", "paper"]
"""smoke: seconds, for tests; cpu: minutes on two cores; paper: the paper's own sizes."""
SCALES: tuple[Scale, ...] = get_args(Scale)
STORE = "runs.db"
"""The store beside the studies' folders, which they share."""
T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """A statement that is true or not, with the numbers it rests on."""

    name: str
    measured: float | str
    expected: float | str
    passed: bool | None
    """None: not checked at this scale."""
    relation: str = "="
    """How measured and expected should compare: `<=`, `>=`, `= ± 1%`."""


def at_most(name: str, measured: float, limit: float) -> Check:
    """Passes where measured <= limit; NaN never does."""
    return Check(name, float(measured), float(limit), bool(measured <= limit), "<=")


def at_least(name: str, measured: float, limit: float) -> Check:
    """Passes where measured >= limit; NaN never does."""
    return Check(name, float(measured), float(limit), bool(measured >= limit), ">=")


def near(name: str, measured: float, expected: float, *, relative: float = 0.0, absolute: float = 0.0) -> Check:
    """Passes where |measured - expected| <= max(relative |expected|, absolute)."""
    close = math.isclose(measured, expected, rel_tol=0.0, abs_tol=max(relative * abs(expected), absolute))
    within = f"{100 * relative:.3g}%" if relative * abs(expected) >= absolute else f"{absolute:.3g}"
    return Check(name, float(measured), float(expected), close, f"= ± {within}")


def holds(name: str, passed: bool, measured: float | str, expected: float | str, relation: str = "=") -> Check:
    """Any other statement, judged by the caller."""
    return Check(name, measured, expected, bool(passed), relation)


def unchecked(check: Check) -> Check:
    """The same statement where the scale is too small for it: it is measured and shown, and decides nothing."""
    return replace(check, passed=None)


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
    files: tuple[Path, ...] = ()
    """What was written."""

    @property
    def passed(self) -> bool:
        """No statement that was checked failed."""
        return all(check.passed is not False for check in self.checks)

    def save(self, out: Path | str) -> tuple[Path, ...]:
        """Write `<out>/<study>/<scale>.json` and `<scale>-<figure>.png` beside it; each is whole or not there."""
        folder = Path(out) / self.study
        body = {
            "study": self.study, "scale": self.scale, "passed": self.passed, "seconds": self.seconds,
            "checks": [asdict(check) for check in self.checks], "data": self.data,
        }  # fmt: skip
        files = [folder / f"{self.scale}.json"]
        write_atomically(files[0], json.dumps(_plain(body), indent=1, allow_nan=False).encode())
        for name, figure in self.figures.items():
            files.append(folder / f"{self.scale}-{name}.png")
            save_figure(figure, files[-1])
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
            raise InputError(f"study '{self.study}' needs checks, one of them judged, with a name of their own each.")
        seconds = time.perf_counter() - self.begun
        return StudyResult(self.study, self.scale, tuple(checks), dict(figures or {}), dict(data or {}), seconds)

    def track(self, items: Iterable[T], what: str) -> Iterator[T]:
        """The items one by one, with a progress bar where there is a terminal to show it on."""
        return track(items, what, self.console)


@dataclass(frozen=True)
class RegisteredStudy:
    """A registered study."""

    name: str
    about: str
    """The first line of its docstring."""
    scales: dict[Scale, str]
    """What each scale it offers means."""
    measure: Callable[[Scale, StudyContext], StudyResult]


studies: Registry[RegisteredStudy] = Registry("study")


def study(
    name: str, *, scales: Mapping[Scale, str]
) -> Callable[[Callable[[Scale, StudyContext], StudyResult]], Callable[[Scale, StudyContext], StudyResult]]:
    """Register a study under `name` with a phrase about each of its scales."""

    def register(measure: Callable[[Scale, StudyContext], StudyResult]) -> Callable[[Scale, StudyContext], StudyResult]:
        about = (measure.__doc__ or "").strip().split("\n")[0]
        if not about:
            raise InputError(f"study '{name}' needs a docstring whose first line says what it shows.")
        studies(name)(RegisteredStudy(name, about, dict(scales), measure))
        return measure

    return register


def matching(pattern: str) -> list[str]:
    """The studies meant: one by its name, all of a paper by its number (`001`), or `all`."""
    names = list(studies)
    if pattern == "all":
        return names
    chosen = [name for name in names if name == pattern or name.startswith(f"{pattern.rstrip('/')}/")]
    return chosen or [studies[pattern].name]


def run_study(
    name: str,
    scale: str = "smoke",
    out: Path | str | None = None,
    console: Console | None = None,
    workers: int | None = None,
) -> StudyResult:
    """Run a study; `out` is the folder for its JSON, its figures and the store of what it trains, `runs.db`.

    Without `out` nothing is written. `workers`: processes that train at a time, by default one per core.
    """
    entry = studies[name]
    if scale not in entry.scales:
        raise InputError(f"study '{name}' has no scale '{scale}': {nearest(scale, entry.scales)}")
    chosen: Scale = next(known for known in entry.scales if known == scale)
    store = None if out is None else Path(out) / STORE
    result = entry.measure(chosen, StudyContext(name, chosen, console, store, workers))
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

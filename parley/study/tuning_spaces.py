"""Where settings are looked for: lists, the grids that papers use, and ranges, as text in a study or in a command.

algorithm.lr    = "half-decades(-3, 1)"       10^-3, 10^-2.5, ..., 10^1
algorithm.steps = "powers-of-two(0, 5)"       1, 2, 4, ..., 32
algorithm.batch = [16, 32, 64]
algorithm.alpha = "log(1e-4, 1)"              any number, evenly in its logarithm
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parley.core.checks import shown
from parley.core.errors import InputError, nearest

MOST = 10_000
"""Points of one grid."""
_CALL = re.compile(r"([a-z-]+)\s*\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class Space:
    """Points in their order, or a range of numbers."""

    points: tuple[Any, ...] = ()
    """Empty for a range."""
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False

    def ends(self) -> tuple[Any, Any]:
        """The first and the last value."""
        if self.points:
            return self.points[0], self.points[-1]
        return (int(self.low), int(self.high)) if self.integer else (self.low, self.high)

    def suggested(self, trial: Any, name: str) -> Any:
        """The value that an Optuna trial gets; of points it is told the place, so that it knows what is near."""
        if self.points:
            return self.points[trial.suggest_int(name, 0, len(self.points) - 1)]
        if self.integer:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)


def half_decades(low: int, high: int) -> Space:
    """10^low to 10^high in steps of half a power."""
    return Space(tuple(10.0 ** (k / 2) for k in _integer_ends("half-decades", 2 * low, 2 * high)))


def decades(low: int, high: int) -> Space:
    """10^low to 10^high."""
    return Space(tuple(10.0**k for k in _integer_ends("decades", low, high)))


def powers_of_two(low: int, high: int) -> Space:
    """2^low to 2^high; whole numbers where none is below 1."""
    powers = _integer_ends("powers-of-two", low, high)
    return Space(tuple(2**k if powers[0] >= 0 else 2.0**k for k in powers))


def log(low: float, high: float) -> Space:
    """A number, evenly in its logarithm."""
    if not 0 < low < high:
        raise InputError(f"log({low:g}, {high:g}) needs two numbers above 0, the smaller one first.")
    return Space(low=float(low), high=float(high), log=True)


def uniform(low: float, high: float) -> Space:
    """A number."""
    if not low < high:
        raise InputError(f"uniform({low:g}, {high:g}) needs the smaller number first.")
    return Space(low=float(low), high=float(high))


def integers(low: int, high: int) -> Space:
    """A whole number, both ends included."""
    if not (isinstance(low, int) and isinstance(high, int) and low < high):
        raise InputError(f"integers({low}, {high}) needs two whole numbers, the smaller one first.")
    return Space(low=low, high=high, integer=True)


NAMED: dict[str, Callable[..., Space]] = {
    "half-decades": half_decades,
    "decades": decades,
    "powers-of-two": powers_of_two,
    "log": log,
    "uniform": uniform,
    "integers": integers,
}


def space_of(value: Any, path: str) -> Space:
    """A list of values, or the text of a named space; `path` is the setting it is for."""
    if isinstance(value, list | tuple):
        if not value or len({repr(item) for item in value}) != len(value):
            raise InputError(f"the values to try for {path} must be different, and at least one.")
        return Space(tuple(value))
    match = _CALL.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise InputError(
            f"{path} = {shown(value)} is no space to search: write a list of values, or one of "
            f"{', '.join(f'{name}(low, high)' for name in NAMED)}."
        )
    name, inside = match.groups()
    if name not in NAMED:
        raise InputError(f"there is no space '{name}' for {path}: {nearest(name, NAMED)}")
    try:
        ends = tomllib.loads(f"ends = [{inside}]")["ends"]
    except tomllib.TOMLDecodeError:
        ends = []
    numbers = all(isinstance(end, int | float) and not isinstance(end, bool) and math.isfinite(end) for end in ends)
    if len(ends) != 2 or not numbers:
        raise InputError(f"{name} for {path} needs two numbers: {name}(low, high).")
    try:
        return NAMED[name](*ends)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _integer_ends(name: str, low: float, high: float) -> range:
    if low != int(low) or high != int(high) or not low <= high or high - low > MOST or max(abs(low), abs(high)) > 600:
        raise InputError(f"{name} needs two whole exponents, the smaller one first.")
    return range(int(low), int(high) + 1)

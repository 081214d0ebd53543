"""Newton's method on a log-likelihood that others evaluate: all clients together, or one client by itself.

    step = information^-1 score,  halved while the likelihood falls;  the end: score' information^-1 score < 1e-20

With a canonical link this is Fisher scoring, and iteratively reweighted least squares. Errors come from the expected
information.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from parley.algorithms.trees.binning import Floats
from parley.core.errors import InputError
from parley.core.text import shown

INTERCEPT = "(intercept)"
MOST_POINTS = 40
"""At so many coefficients the likelihood may be asked for."""
_STEPS = 25
"""Under separation the decrement falls by e a step, and is still 1e-11 after so many."""
_ENOUGH = 1e-20
_SINGULAR = 1e-10
REASONS = ("", "too few rows", "collinear columns", "a coefficient grows without end", "no events")


class NoFit(InputError):
    """There are no estimates; `reason` is a place in REASONS."""

    def __init__(self, reason: int, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True)
class Point:
    """What is known of the log-likelihood at some coefficients."""

    rows: float
    value: float
    score: Floats
    information: Floats
    """Minus the second derivative."""
    expected: Floats | None = None
    """The expected information, where it is another."""
    extra: Floats | None = None
    """Sums that a dispersion needs."""

    @property
    def fisher(self) -> Floats:
        return self.information if self.expected is None else self.expected


@dataclass(frozen=True)
class Fit:
    """The largest likelihood."""

    beta: Floats
    point: Point

    @property
    def covariance(self) -> Floats:
        """The inverse of the expected information."""
        return _inverse(self.point.fisher)


Newton = Generator[Floats, Point, Fit]


def newton(names: Sequence[str], intercept: float = 0.0) -> Newton:
    """Ask for the likelihood at coefficients of these names, from 0 and this intercept on, until it is largest."""
    beta = np.where(np.array(names) == INTERCEPT, intercept, 0.0)
    point = yield beta
    _check_columns(point.information, names)
    asked, steps = 1, 0
    while steps < _STEPS and asked < MOST_POINTS:
        try:
            step = _inverse(point.information) @ point.score
        except np.linalg.LinAlgError:
            break
        if float(step @ point.score) < _ENOUGH:
            return Fit(beta, point)
        size, ahead = 1.0, (yield beta + step)
        asked, steps = asked + 1, steps + 1
        # Whoever answered last time may be gone: likelihoods of different rows say nothing about each other.
        while not _rises(point, ahead) and asked < MOST_POINTS:
            size, asked = size / 2, asked + 1
            ahead = yield beta + size * step
        beta, point = beta + size * step, ahead
    spread = int(np.argmax(np.abs(beta) * [name != INTERCEPT for name in names]))
    raise NoFit(
        3,
        f"the coefficient of '{shown(names[spread])}' grows without end: it separates the outcomes, alone or with "
        "other columns, so there is no estimate; leave it out or merge rare values.",
    )


def _rises(before: Point, ahead: Point) -> bool:
    slack = 1e-12 * (1 + abs(before.value))
    return ahead.rows != before.rows or ahead.value >= before.value - slack


def solved(search: Newton, at: Callable[[Floats], Point]) -> Fit:
    """The end of a search whose points one function gives."""
    beta = next(search)
    while True:
        try:
            beta = search.send(at(beta))
        except StopIteration as end:
            fit: Fit = end.value
            return fit


def _inverse(information: Floats) -> Floats:
    """By Cholesky, with ones on the diagonal."""
    size = np.sqrt(np.maximum(np.diag(information), 1e-300))
    factor = cho_factor(information / np.outer(size, size))
    inverse: Floats = cho_solve(factor, np.eye(len(size))) / np.outer(size, size)
    return inverse


def _check_columns(information: Floats, names: Sequence[str]) -> None:
    """Refuse columns that others, or the intercept, make up."""
    size = np.sqrt(np.diag(information))
    empty = [name for name, size_of_column in zip(names, size, strict=True) if not size_of_column > 0]
    if empty:
        raise NoFit(2, f"column '{shown(empty[0])}' does not vary; leave it out.")
    values, vectors = np.linalg.eigh(information / np.outer(size, size))
    if values[0] < _SINGULAR:
        part = np.abs(vectors[:, 0])
        among = [
            f"'{shown(name)}'"
            for name, size_of_column in zip(names, part, strict=True)
            if size_of_column > 0.05 * part.max()
        ]
        raise NoFit(2, f"the columns {', '.join(among)} are collinear: each follows from the others; leave one out.")

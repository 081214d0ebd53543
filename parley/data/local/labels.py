"""What a target column holds: classes or numbers, decided over all clients at once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError
from parley.core.text import shown
from parley.data.checks import MOST_CLASSES

Sort = Literal["whole", "number", "text", "missing"]
Task = Literal["classification", "regression"]

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


@dataclass
class Labels:
    """The targets of one client as they were found."""

    values: Sequence[Any] | NDArray[Any]
    """Cells of a table (texts, or numbers of a frame), or an array [n, ...]."""
    where: Callable[[int], str]
    """The place of sample i, for a sentence: "line 3, column 'y' of 'a.csv'"."""
    first: dict[Sort, int] = field(init=False)
    """The first sample of each sort that there is."""

    def __post_init__(self) -> None:
        self.first = _sorts_of_array(self.values) if isinstance(self.values, np.ndarray) else _sorts(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def missing(self) -> list[int]:
        """The samples without a target."""
        if "missing" not in self.first:
            return []
        if isinstance(self.values, np.ndarray) and self.values.dtype.kind == "f":
            return list(np.flatnonzero(~np.isfinite(self.values)))
        return [i for i, value in enumerate(self.values) if _sort(value) == "missing"]

    def sentence(self, i: int) -> str:
        """Where sample i is and what it has there."""
        return f"{self.where(i)} holds '{shown(self.values[i], 40)}'"


@dataclass(frozen=True)
class Target:
    """How targets become numbers."""

    kind: Task
    classes: tuple[str, ...] = ()
    """Names of the classes where labels are texts; empty where they are numbers already."""

    def numbers(self, labels: Labels) -> NDArray[Any]:
        """int64 class numbers, or float64 values."""
        refuse_missing(labels)
        if self.kind == "regression":
            _refuse(labels, ("text",), "where a number is to be predicted")
            return np.asarray(labels.values, np.float64)
        if self.classes:
            known = {name: number for number, name in enumerate(self.classes)}
            numbers = [known.get(str(value).strip(), -1) for value in labels.values]
            if -1 in numbers:
                raise InputError(f"{labels.sentence(numbers.index(-1))}, a class that was not there before.")
            return np.array(numbers, np.int64)
        _refuse(labels, ("text",), "where a class number is expected")
        return _class_numbers(labels)


def decide(clients: Iterable[Labels], kind: Task | None) -> Target:
    """Classes or regression: texts and whole numbers are classes, other numbers are not; both at once is refused."""
    clients = list(clients)
    for labels in clients:
        refuse_missing(labels)
    sorts = {sort: labels for labels in reversed(clients) for sort in labels.first}
    if "text" in sorts and (len(sorts) > 1 or kind == "regression") and kind != "classification":
        text = sorts["text"]
        other = next((labels for sort, labels in sorts.items() if sort != "text"), None)
        beside = "" if other is None else f", but {other.sentence(_first_number(other))}"
        raise InputError(
            f"{text.sentence(text.first['text'])}{beside}; targets must be numbers throughout, or classes by name "
            'throughout (kind = "classification" takes all of them for names).'
        )
    if kind is None:
        kind = "regression" if "number" in sorts else "classification"
    if kind == "regression":
        return Target("regression")
    if "text" not in sorts:
        for labels in clients:
            _class_numbers(labels)
        return Target("classification")
    for labels in clients:
        unprintable = next((i for i, value in enumerate(labels.values) if not str(value).strip().isprintable()), None)
        if unprintable is not None:
            raise InputError(f"{labels.sentence(unprintable)}: the name of a class may not have control characters.")
    return Target("classification", tuple(sorted({str(v).strip() for labels in clients for v in labels.values})))


def refuse_missing(labels: Labels) -> None:
    """Every sample needs a target."""
    if "missing" in labels.first:
        i = labels.first["missing"]
        raise InputError(f"{labels.sentence(i)}, which is no target; fill it in or leave the row out.")


def _class_numbers(labels: Labels) -> NDArray[np.int64]:
    values = np.asarray(labels.values, None if isinstance(labels.values, np.ndarray) else np.float64)
    per_sample = values.reshape(len(values), -1)
    wrong = (per_sample != np.floor(per_sample)) | (per_sample < 0) | (per_sample >= MOST_CLASSES)
    # Sequences leave positions out by a negative number; whether it is the right one is checked with the values.
    if values.ndim > 1:
        wrong &= per_sample >= 0
    if wrong.any():
        raise InputError(
            f"{labels.sentence(int(wrong.any(axis=1).argmax()))}, which is no class number: number the classes from 0, "
            'name them, or say that a number is to be predicted (kind = "regression").'
        )
    return values.astype(np.int64)


def _refuse(labels: Labels, sorts: tuple[Sort, ...], why: str) -> None:
    for sort in sorts:
        if sort in labels.first:
            raise InputError(f"{labels.sentence(labels.first[sort])} {why}.")


def _first_number(labels: Labels) -> int:
    return next(i for sort, i in labels.first.items() if sort != "text")


def _sorts(values: Sequence[Any]) -> dict[Sort, int]:
    first: dict[Sort, int] = {}
    for i, value in enumerate(values):
        first.setdefault(_sort(value), i)
    return first


def _sort(value: Any) -> Sort:
    if isinstance(value, bool | int | np.integer | np.bool_):
        return "whole"
    if isinstance(value, str):
        text = value.strip()
        if _WHOLE.fullmatch(text):
            return "whole"
        try:
            return "number" if math.isfinite(float(text)) else "missing"
        except ValueError:
            return "text" if text else "missing"
    try:
        return "number" if math.isfinite(value) else "missing"
    except TypeError:  # None, or a missing value of a frame's library
        return "missing"


def _sorts_of_array(values: NDArray[Any]) -> dict[Sort, int]:
    if not len(values):
        return {}
    if values.dtype.kind in "iub":
        return {"whole": 0}
    if values.dtype.kind == "f":
        bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        return {"number": 0, "missing": int(bad.argmax())} if bad.any() else {"number": 0}
    empty = next((i for i, value in enumerate(values) if not str(value).strip()), None)
    return {"text": 0} if empty is None else {"text": 0, "missing": empty}

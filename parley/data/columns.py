"""Columns of a table as a study declares them: what each holds, and the numbers by which its cells become inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError
from parley.core.show import Brief
from parley.core.text import shown
from parley.data.dates import MONTHS, WEEKDAYS, Part, first_day

Kind = Literal["numeric", "categorical", "ordinal", "date"]
Method = Literal["standard", "min-max", "robust", "none"]
Impute = Literal["mean", "median", "most-frequent", "none"]
OTHER = "other"
"""The name of the input for levels that are not among a column's."""


@dataclass(frozen=True, repr=False)
class Column(Brief):
    """One column; the last four settings are written by `parley stats --freeze`."""

    kind: Kind | None = None
    """Numbers, texts of which each becomes an input of zeros and ones, texts in an order, which become numbers, or
    dates; by default what the data hold, texts being categorical."""
    scaling: Method | None = None
    """Scaling of numbers: standard, min-max, robust or none; by default the method of `parley stats`."""
    impute: Impute | None = None
    """What replaces missing cells: mean, median, most-frequent or none; by default the fill of `parley stats`."""
    indicator: bool = False
    """Add an input that is 1 where the cell is missing."""
    unknown: Literal["other", "refuse"] = "other"
    """Texts that are not among the levels: they share an input (ordinal columns: they are missing), or their
    samples are refused."""
    least: int = 0
    """Fewest samples, of all clients, that a level needs; rarer ones share the input of unknown texts."""
    parts: tuple[Part, ...] = ("days",)
    """Inputs made of dates: days and year as numbers, month and weekday as zeros and ones."""
    since: str = ""
    """For dates: day zero, YYYY-MM-DD; by default the center of the scaling."""
    unit: str = ""
    """Unit of the numbers, such as mg/l, for the card of an exported model."""
    levels: tuple[str, ...] = ()
    """The texts, in order; by default computed from the data, except for ordinal columns."""
    fill: float | str | None = None
    """Computed: replacement of missing cells, a number or a level."""
    center: float | None = None
    """Computed: subtracted from numbers."""
    scale: float | None = None
    """Computed: the divisor, after that."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        object.__setattr__(self, "parts", tuple(self.parts))
        if self.kind not in (None, "date") and (self.parts != ("days",) or self.since):
            raise InputError('parts and since are for dates; say kind = "date".')
        if not self.parts or len(set(self.parts)) < len(self.parts) or not set(self.parts) <= set(get_args(Part)):
            raise InputError(f"parts must be some of {', '.join(get_args(Part))}, each once.")
        if self.since:
            first_day(self.since)
        if len(set(self.levels)) < len(self.levels):
            raise InputError("levels has a name twice.")
        if self.levels and self.kind in ("numeric", "date"):
            raise InputError(f'a {self.kind} column has no levels; say kind = "categorical" or "ordinal".')
        if self.kind == "ordinal" and not self.levels:
            raise InputError("an ordinal column needs its levels, in order.")
        if any(level_of(name) != name for name in self.levels):
            raise InputError("levels must be texts without blanks around them, and whole numbers without a point.")
        if None not in (self.kind, self.fill) and isinstance(self.fill, str) != (self.kind == "categorical"):
            raise InputError(f"fill must be a {'level' if self.kind == 'categorical' else 'number'}.")
        if isinstance(self.fill, str) and self.levels and self.fill not in self.levels:
            raise InputError("fill must be one of the levels.")
        for name in ("fill", "center", "scale"):
            value = getattr(self, name)
            if isinstance(value, float | int) and not isfinite(value):
                raise InputError(f"{name} must be a finite number.")
        if self.scale is not None and self.scale <= 0:
            raise InputError("scale must be positive.")
        if not self.unit.isprintable():
            raise InputError("unit must be a text that can be printed.")
        if self.least < 0:
            raise InputError(f"least must be at least 0, not {self.least}.")
        if self.kind == "categorical" and self.impute in ("mean", "median"):
            raise InputError(f"a categorical column has no {self.impute}; impute is most-frequent or none.")
        if self.kind not in (None, "categorical") and self.impute == "most-frequent":
            raise InputError("most-frequent is for categorical columns; impute is mean, median or none.")

    def of(self, held: str, name: str) -> Column:
        """Itself with the kind of what the data hold (texts, dates or numbers), if it has none yet."""
        kind: Kind = "categorical" if held == "texts" else "date" if held == "dates" else "numeric"
        try:
            return replace(self, kind=kind) if self.kind is None else self
        except InputError as error:
            raise InputError(f"column '{shown(name)}' holds {held}: {error}") from None

    @property
    def texts(self) -> bool:
        """Whether its cells are texts."""
        return self.kind in ("categorical", "ordinal") or (self.kind is None and bool(self.levels))

    @property
    def holds(self) -> Literal["texts", "dates", "numbers"]:
        """What its cells are."""
        return "texts" if self.texts else "dates" if self.kind == "date" else "numbers"

    @property
    def known(self) -> bool:
        """Whether all was found out that has to be."""
        return bool(self.levels) if self.kind == "categorical" else self.center is not None and self.scale is not None

    @property
    def code_of_unknown(self) -> float:
        """The number of texts that are not among the levels."""
        return float("nan") if self.kind == "ordinal" else float(len(self.levels))

    def inputs(self, name: str) -> list[str]:
        """The names of the inputs that it becomes, in order."""
        names = [f"{name}_{level}" for level in (*self.levels, OTHER)] if self.kind == "categorical" else [name]
        if self.parts != ("days",):
            named = {"month": [f"month_{n}" for n in MONTHS], "weekday": [f"weekday_{day}" for day in WEEKDAYS]}
            names = [f"{name}_{each}" for part in self.parts for each in named.get(part, [part])]
        return [*names, *([f"{name}_missing"] if self.indicator else [])]


def level_of(cell: Any) -> str:
    """A cell's text without blanks around it, empty where it is missing; 1, 1.0 and "01" are the level "1"."""
    if cell is None or cell != cell or type(cell).__name__ in ("NAType", "NaTType"):
        return ""
    text = str(cell).strip()
    try:
        number = float(text)
    except ValueError:
        return text
    if number != number:
        return ""
    return str(int(number)) if isfinite(number) and number == int(number) and abs(number) < 2**53 else text


def coded(cells: Sequence[Any] | NDArray[Any]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """The number of each cell's level among those that occur, sorted, NaN where it is missing; and these levels."""
    texts = [level_of(cell) for cell in cells]
    levels = tuple(sorted({text for text in texts if text}))
    codes = {level: float(code) for code, level in enumerate(levels)} | {"": float("nan")}
    return np.array([codes[text] for text in texts], np.float64), levels


def recoding(levels: Sequence[str], column: Column, name: str) -> NDArray[np.float64]:
    """The number among the column's levels of each of `levels`; one more is that of a level nobody has seen."""
    codes = {level: float(code) for code, level in enumerate(column.levels)}
    if column.unknown == "refuse" and not set(levels) <= set(codes):
        raise InputError(f"column '{shown(name)}' has a text that is not among its levels, preprocessing.table.")
    return np.array([*(codes.get(level, column.code_of_unknown) for level in levels), column.code_of_unknown])


def check_table(table: Mapping[str, Column]) -> None:
    """Refuse a table of columns of which two become inputs of the same name."""
    seen: set[str] = set()
    for name, column in table.items():
        if not isinstance(column, Column):
            raise InputError(f"table must hold a Column for each name, not a {type(column).__name__}.")
        for made in column.inputs(name):
            if made in seen:
                raise InputError(f"two inputs would be called '{shown(made)}'; rename a column or a level.")
            seen.add(made)

"""Dates in tables: cells as days since 1970-01-01, and their parts as networks and exported graphs compute them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.core.errors import InputError
from parley.core.text import shown

Part = Literal["days", "year", "month", "weekday"]
MONTHS = tuple(range(1, 13))
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
YEAR = 365.2425
"""Days of a year on average."""
_FIRST = datetime(1970, 1, 1)
_ISO = re.compile(r"\d{4}-?\d{2}-?\d{2}([T ].+)?")
_OTHER = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}([T ].*)?")

CALENDAR = """
day Floor days
z Add day 719468
eras Div z 146097
era Floor eras
era_days Mul era 146097
d Sub z era_days
d4 Div d 1460
f4 Floor d4
d100 Div d 36524
f100 Floor d100
d400 Div d 146096
f400 Floor d400
a Sub d f4
b Add a f100
c Sub b f400
y Div c 365
yoe Floor y
y365 Mul yoe 365
y4 Div yoe 4
g4 Floor y4
y100 Div yoe 100
g100 Floor y100
before Add y365 g4
begin Sub before g100
doy Sub d begin
doy5 Mul doy 5
doy52 Add doy5 2
m Div doy52 153
march Floor m
m10 Div march 10
late Floor m10
march3 Add march 3
late12 Mul late 12
month Sub march3 late12
y400 Mul era 400
y_march Add yoe y400
year Add y_march late
monday Add day 3
weeks Div monday 7
week Floor weeks
week7 Mul week 7
weekday Sub monday week7
"""
"""From days since 1970-01-01 to year, month (1 to 12) and weekday (Monday is 0), an ONNX operation a line: result,
operator, operands. Years are counted from March, in eras of 400 (Hinnant, "chrono-compatible low-level date
algorithms", `civil_from_days`); float64 is exact here. One program, so that no two ways to run it can differ."""

_OPERATORS: Mapping[str, Callable[..., Tensor]] = {
    "Floor": torch.floor,
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
}


def calendar(days: Tensor) -> Mapping[str, Tensor]:
    """`year`, `month` and `weekday` of days since 1970-01-01 (float64); NaN stays NaN."""
    values: dict[str, Any] = {"days": days}
    for result, operator, *operands in map(str.split, CALENDAR.strip().splitlines()):
        values[result] = _OPERATORS[operator](*(values[x] if x in values else float(x) for x in operands))
    return values


def day_of(cell: Any) -> float:
    """Days from 1970-01-01 to a date or a time, NaN where the cell is missing; a ValueError if it is neither."""
    if isinstance(cell, np.datetime64):
        return float(cell.astype("datetime64[us]").astype(np.int64)) / 86_400e6 if cell == cell else float("nan")
    if cell is None or cell != cell or "NA" in type(cell).__name__:
        return float("nan")
    if isinstance(cell, str):
        text = cell.strip()
        if not text:
            return float("nan")
        if not _ISO.fullmatch(text):
            raise ValueError(text)
        cell = datetime.fromisoformat(text)
    if isinstance(cell, datetime):
        plain = cell if cell.tzinfo is None else cell.astimezone(UTC).replace(tzinfo=None)
        return (plain - _FIRST).total_seconds() / 86400
    if isinstance(cell, date):
        return float((cell - _FIRST.date()).days)
    raise ValueError(cell)


def date_text(days: float) -> str:
    """The date of days since 1970-01-01, with the time where it is no whole day."""
    try:
        when = np.datetime64("1970-01-01T00:00:00", "s") + np.timedelta64(round(days * 86400), "s")
    except (ValueError, OverflowError):
        return repr(days)
    return str(when).removesuffix("T00:00:00")


def looks_like_date(cell: Any) -> bool:
    """Whether a cell is a date, in whatever order its parts stand."""
    if isinstance(cell, date | np.datetime64):
        return True
    return isinstance(cell, str) and _OTHER.fullmatch(cell.strip()) is not None


def not_a_date(cell: Any) -> str:
    """What is said of a cell in a column of dates that holds none."""
    return f"holds '{shown(cell, 40)}', which is no date; write dates as YYYY-MM-DD"


def rounded_down(days: NDArray[np.float64], kind: Any) -> NDArray[Any]:
    """In this precision, never later: 23:59:59 does not become the next day."""
    numbers = days.astype(kind)
    return np.where(numbers > days, np.nextafter(numbers, numbers.dtype.type(-np.inf)), numbers)


def first_day(text: str) -> float:
    """Of a date that a study gives."""
    try:
        day = day_of(text)
    except ValueError:
        day = float("nan")
    if day != day:
        raise InputError(f"since must be a date, YYYY-MM-DD, not '{shown(text, 40)}'.")
    return day

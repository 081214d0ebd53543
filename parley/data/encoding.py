"""From rows of a table, texts as numbers of their levels, to the inputs of a network: one step for all columns.

input d = (filled - center) / scale     of a number, where `filled` is the cell, or `fill` where it is missing
          1 if filled = code else 0     of a level, a month or a weekday
          1 if the cell is missing      of an indicator
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from parley.core.errors import InputError, nearest
from parley.core.show import Brief
from parley.core.text import shown
from parley.data.columns import Column, recoding
from parley.data.dates import MONTHS, WEEKDAYS, YEAR, Part, calendar

_NAN = float("nan")
PARTS_OF_CALENDAR: tuple[Part, ...] = ("year", "month", "weekday")
"""Parts of dates that have to be computed."""


@dataclass(frozen=True, repr=False)
class Encoding(Brief):
    """What was agreed on for every column of a table, in the order of the columns."""

    columns: tuple[str, ...]
    """Of the raw table."""
    table: tuple[Column, ...]

    @classmethod
    def of(cls, table: Mapping[str, Column], columns: tuple[str, ...], title: str) -> Encoding:
        """For a table with these columns; all must be declared, and all declared ones be there."""
        if not columns:
            raise InputError(f"'{title}' has no named columns, which preprocessing.table is for.")
        if (odd := next((name for name in table if name not in columns), None)) is not None:
            raise InputError(f"'{title}' lacks the column '{shown(odd)}' of preprocessing.table.")
        if (odd := next((name for name, column in table.items() if not column.known), None)) is not None:
            raise InputError(
                f"how column '{shown(odd)}' is encoded was not computed yet; 'parley stats STUDY --freeze FILE' does "
                "it (in Python: statistics(study).preprocessing())."
            )
        if (odd := next((name for name in columns if name not in table), None)) is not None:
            raise InputError(
                f"'{title}' has the column '{shown(odd)}', which is not in preprocessing.table: {nearest(odd, table)}"
            )
        return cls(columns, tuple(table[name] for name in columns))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of what it makes."""
        return tuple(name for raw, column in zip(self.columns, self.table, strict=True) for name in column.inputs(raw))

    @property
    def categories(self) -> tuple[str, ...]:
        """The columns of texts."""
        return tuple(name for name, column in zip(self.columns, self.table, strict=True) if column.texts)

    @property
    def dates(self) -> tuple[str, ...]:
        """The columns of dates."""
        return tuple(name for name, column in zip(self.columns, self.table, strict=True) if column.kind == "date")

    @property
    def fills(self) -> bool:
        """Whether no missing cell stays missing: a missing text becomes a level or zeros."""
        return all(column.kind == "categorical" or column.fill is not None for column in self.table)

    def apply(self, x: Tensor) -> Tensor:
        """Inputs [n, inputs] of rows [n, columns], in their dtype."""
        return encoded(x, **self.tensors())

    def coded(self, x: Tensor, categories: tuple[str, ...], levels: tuple[tuple[str, ...], ...]) -> Tensor:
        """The rows with each text's number among the levels agreed on, in place of that among `levels`."""
        x = x.clone()
        for name, known in zip(categories, levels, strict=True):
            index = self.columns.index(name)
            numbers = torch.from_numpy(recoding(known, self.table[index], name)).to(x.dtype)
            cells = x[:, index]
            known_cells = ~cells.isnan()
            x[known_cells, index] = numbers[cells[known_cells].long().clamp(max=len(known))]
        return x

    def tensors(self) -> dict[str, Tensor]:
        """One entry for every input: the column it is of and the numbers of its kind."""
        rows: list[tuple[float, ...]] = []
        for index, column in enumerate(self.table):
            if column.kind == "categorical":
                fill = _NAN if column.fill is None else float(column.levels.index(str(column.fill)))
                rows += [(index, fill, 0.0, 1.0, float(code), False, 0) for code in range(len(column.levels) + 1)]
            else:
                assert column.center is not None
                assert column.scale is not None
                fill = _NAN if column.fill is None else float(column.fill)
                for part in column.parts:
                    rows += [(index, fill, *numbers) for numbers in _of_part(part, column.center, column.scale)]
            if column.indicator:
                rows.append((index, _NAN, 0.0, 1.0, _NAN, True, 0))
        numbers: NDArray[np.float64] = np.array(rows, np.float64)
        fill_, center, scale, code = (torch.from_numpy(numbers[:, k].copy()) for k in range(1, 5))
        tensors = {
            "source": torch.from_numpy(numbers[:, 0].astype(np.int64)),
            "fill": fill_,
            "center": center,
            "scale": scale,
            "code": code,
            "level": ~code.isnan(),
            "gap": torch.from_numpy(numbers[:, 5] == 1.0),
        }
        for number, part in enumerate(PARTS_OF_CALENDAR, 1):
            if (numbers[:, 6] == number).any():
                tensors[f"of_{part}"] = torch.from_numpy(numbers[:, 6] == number)
        return tensors

    def example(self) -> Tensor:
        """Some made-up rows: every level, unknown texts, and missing cells where they do not stay missing."""
        many = max([4, *(len(column.levels) + 2 for column in self.table)])
        rows = torch.empty(many, len(self.columns), dtype=torch.float64)
        for index, column in enumerate(self.table):
            if column.texts:
                codes = [*range(len(column.levels)), column.code_of_unknown]
                rows[:, index] = torch.tensor(codes, dtype=torch.float64).repeat(many)[:many]
            elif column.kind == "date":
                rows[:, index] = (column.center or 0.0) + torch.linspace(-500, 500, many, dtype=torch.float64).floor()
            else:
                rows[:, index] = (column.center or 0.0) + (column.scale or 1.0) * torch.linspace(-1, 1, many)
            if column.fill is not None or column.kind == "categorical":
                rows[-1, index] = _NAN
        return rows


def _of_part(part: Part, center: float, scale: float) -> list[tuple[float, ...]]:
    """Center, scale, code, no indicator and the part's number, for each input that a part of a date becomes."""
    if part == "days":
        return [(center, scale, _NAN, False, 0)]
    number = 1 + PARTS_OF_CALENDAR.index(part)
    if part == "year":
        middle = calendar(torch.tensor(center, dtype=torch.float64))["year"].item()
        return [(middle, max(scale / YEAR, 1.0), _NAN, False, number)]
    codes = MONTHS if part == "month" else range(len(WEEKDAYS))
    return [(0.0, 1.0, float(code), False, number) for code in codes]


def encoded(
    x: Tensor,
    source: Tensor,
    fill: Tensor,
    center: Tensor,
    scale: Tensor,
    code: Tensor,
    level: Tensor,
    gap: Tensor,
    **of_parts: Tensor,
) -> Tensor:
    """The inputs, in float64, rounded to the dtype of `x`; `of_year` and the like say which are of a part of a date."""
    raw = x.double()[:, source]
    missing = raw.isnan()
    filled = torch.where(missing, fill, raw)
    parts = calendar(filled) if of_parts else {}
    for name, chosen in of_parts.items():
        filled = torch.where(chosen, parts[name.removeprefix("of_")], filled)
    # Zeros and ones as numbers: ONNX Runtime cannot choose between booleans.
    flags = torch.where(gap, missing.double(), (filled == code).double())
    return torch.where(level | gap, flags, (filled - center) / scale).to(x.dtype)


class Encoder(nn.Module):
    """The same as a module, of which a state dict holds nothing."""

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        self.names = tuple(encoding.tensors())
        for name, value in encoding.tensors().items():
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return encoded(x, **{name: getattr(self, name) for name in self.names})

"""Tables: named columns of numbers and one of targets, from .csv and .parquet files and from data frames."""

from __future__ import annotations

import csv
import warnings
from array import array
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.core.errors import InputError, ParleyWarning
from parley.core.text import shown
from parley.data.client import DataInfo
from parley.data.columns import coded, level_of
from parley.data.convert import Precision, check_single, float_type
from parley.data.dates import day_of, looks_like_date, not_a_date, rounded_down
from parley.data.encoding import Encoding
from parley.data.local.bounds import check_expansion, parsed
from parley.data.local.labels import Labels

TABLES = (".csv", ".parquet")
BOOLEANS = {"True": 1.0, "False": 0.0, "TRUE": 1.0, "FALSE": 0.0, "true": 1.0, "false": 0.0}
"""Words in a .csv file that are numbers: what pandas, R and spreadsheets, and JSON write for a boolean."""
_TEXTS = "name columns of texts in categories"
_DATES = "which looks like a date: name columns of dates in dates, and write them as YYYY-MM-DD"
Layout = Callable[[Sequence[str], str], tuple[list[int], int | None]]
"""From a table's header and title to the places of its inputs and of its target (None: it has none)."""


@dataclass(frozen=True)
class Cells:
    """What cells may hold besides numbers."""

    missing: bool = False
    """Nothing: empty cells and NaN are missing values."""
    categories: tuple[str, ...] = ()
    """Texts, in these columns."""
    dates: tuple[str, ...] = ()
    """Dates, in these columns; they become days since 1970-01-01."""
    skip: bool = False
    """Rows with cells that cannot be read are left out."""

    @classmethod
    def of(cls, info: DataInfo) -> Cells:
        """As in samples of which this is said."""
        return cls(info.missing, info.categories, info.dates)


def cells_of(missing: bool, categories: Sequence[str], dates: Sequence[str], on_error: str) -> Cells:
    """From the settings of data."""
    if on_error not in ("refuse", "skip"):
        raise InputError(f'on_error is "refuse" or "skip", not {shown(on_error, 40)!r}.')
    return Cells(missing, tuple(categories), tuple(dates), on_error == "skip")


@dataclass(frozen=True)
class Table:
    """Rows of numbers under names, with the targets apart."""

    title: str
    """What it is called in sentences."""
    names: tuple[str, ...]
    """Of the input columns."""
    x: NDArray[np.floating[Any]]
    """[rows, columns], finite, or NaN where a value may be missing."""
    last: str
    """The name of the last column of all."""
    target: str | None = None
    labels: Labels | None = None
    """The target column, where there is one."""
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of each column of texts; their numbers stand in `x`."""
    rows: Sequence[int] = ()
    """The line or row that each row is from."""
    skipped: tuple[str, ...] = ()
    """Why rows were left out, a sentence each."""

    def ordered(self, names: Sequence[str]) -> Table:
        """The same table with its columns in this order; they must be exactly these."""
        missing, extra = set(names) - set(self.names), set(self.names) - set(names)
        if missing or extra:
            gap = f"lacks the column '{shown(min(missing))}'" if missing else f"has a column '{shown(min(extra))}'"
            rest = "that the others have" if missing else "that the others do not have"
            raise InputError(f"{self.title} {gap} {rest}; all clients need the same columns.")
        if tuple(names) == self.names:
            return self
        indices = {name: index for index, name in enumerate(self.names)}
        return replace(self, names=tuple(names), x=self.x[:, [indices[name] for name in names]])

    def coded(self, levels: Mapping[str, tuple[str, ...]]) -> Table:
        """The same table with each text's number among these levels; others get the next number."""
        x = self.x.copy()
        for name, known in levels.items():
            numbers = {level: number for number, level in enumerate(known)}
            anew = np.array([*(numbers.get(level, len(known)) for level in self.levels[name]), np.nan], x.dtype)
            index = self.names.index(name)
            x[:, index] = anew[np.where(np.isnan(x[:, index]), len(anew) - 1, x[:, index]).astype(np.int64)]
        return replace(self, x=x, levels=dict(levels))


def to_train_on(target: str | None, leave_out: Sequence[str] = ()) -> Layout:
    """All columns are inputs but the target: the one of that name, by default the last."""

    def layout(header: Sequence[str], title: str) -> tuple[list[int], int | None]:
        if len(header) < 2:
            raise InputError(f"{title} needs a header line with at least two columns.")
        if target is not None and target not in header:
            raise InputError(f"{title} has no column '{shown(target)}'; its columns are {listed(header)}.")
        index = len(header) - 1 if target is None else list(header).index(target)
        return [n for n, name in enumerate(header) if n != index and name not in leave_out], index

    return layout


def only(column: str) -> Layout:
    """This column alone, in the place of the target."""

    def layout(header: Sequence[str], title: str) -> tuple[list[int], int | None]:
        if column not in header:
            raise InputError(f"{title} has no column '{shown(column)}'; its columns are {listed(header)}.")
        return [], list(header).index(column)

    return layout


def to_predict(names: Sequence[str], count: int, target: str | None = None) -> Layout:
    """The inputs of these names, whatever else there is; without names, `count` columns beside a target or one more."""

    def layout(header: Sequence[str], title: str) -> tuple[list[int], int | None]:
        indices = {name: index for index, name in enumerate(header)}
        missing = next((name for name in names if name not in indices), None)
        if missing is not None:
            raise InputError(f"{title} lacks the column '{shown(missing)}'; its columns are {listed(header)}.")
        if names:
            return [indices[name] for name in names], None
        kept = [index for name, index in indices.items() if name != target]
        kept = kept[:-1] if len(kept) == count + 1 else kept
        if len(kept) != count:
            raise InputError(f"{title} has {len(kept)} input columns, but the model takes {count}.")
        return kept, None

    return layout


def read_table(file: Path, layout: Layout, precision: Precision | None = None, cells: Cells | None = None) -> Table:
    """A table in a file, by its ending. Without `precision`, columns become float32 unless that cannot tell their
    numbers apart."""
    read = _read_csv if file.suffix.lower() == ".csv" else _read_parquet
    return read(file, layout, precision, cells or Cells())


def _read_csv(file: Path, layout: Layout, precision: Precision | None, cells: Cells) -> Table:
    title = f"'{shown(file)}'"
    values, labels, lines, skipped = array("d"), [], array("q"), []
    with parsed(title, ".csv"), file.open(newline="", encoding="utf-8-sig") as stream:
        reader = csv.reader(stream, strict=True)
        header = _header([name.strip() for name in next(reader, [])], title)
        indices, target = layout(header, title)
        texts: dict[int, list[str]] = {index: [] for index in _indices("categories", cells, header, indices, title)}
        dates = set(_indices("dates", cells, header, indices, title))
        gap = "nan" if cells.missing else ""
        for row in reader:
            if not row:
                continue
            line = reader.line_num
            try:
                if len(row) != len(header):
                    raise InputError(
                        f"line {line} of {title} has {len(row)} columns, but the header has {len(header)}."
                    )
                numbers = [
                    (0.0 if row[index].strip() else _number(gap))
                    if index in texts
                    else _day(row[index], gap)
                    if index in dates
                    else _number(row[index] if row[index].strip() else gap)
                    for index in indices
                ]
            except (ValueError, InputError) as error:
                sentence = str(error)
                if not isinstance(error, InputError):
                    sentence = _bad_cell(
                        row, indices, texts, dates, header, f"line {line}", title, cells, _gaps(target)
                    )
                if not cells.skip:
                    raise InputError(sentence) from None
                skipped.append(sentence)
                continue
            lines.append(line)
            values.extend(numbers)
            if target is not None:
                labels.append(row[target])
            for index, column in texts.items():
                column.append(row[index])
    names = [header[index] for index in indices]
    x = np.array(values, np.float64).reshape(len(lines), len(names))
    columns = {header[index]: column for index, column in texts.items()}
    where = Where(title, "line", lines, header[target] if target is not None else None, header[-1], _gaps(target))
    return _made(x, names, columns, labels, where, precision, cells, skipped)


def _read_parquet(file: Path, layout: Layout, precision: Precision | None, cells: Cells) -> Table:
    title = f"'{shown(file)}'"
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"reading {title} needs the package pyarrow: pip install pyarrow.") from None
    with parsed(title, ".parquet"), parquet.ParquetFile(file) as opened:
        content = opened.metadata
        unpacked = sum(content.row_group(i).total_byte_size for i in range(content.num_row_groups))
        check_expansion(max(unpacked, 8 * content.num_rows * content.num_columns), file.stat().st_size, title)
        frame = opened.read()
    return read_frame(frame, title, layout, precision, cells)


def read_frame(
    frame: Any, title: str, layout: Layout, precision: Precision | None = None, cells: Cells | None = None
) -> Table:
    """Anything with named columns: a data frame, a table of pyarrow, a dictionary."""
    cells = cells or Cells()
    keys = columns_of(frame)
    header = check_names([str(key) for key in keys], title)
    indices, target = layout(header, title)
    dates = _indices("dates", cells, header, indices, title)
    texts = {
        header[index]: column_values(frame[keys[index]], header[index], title)
        for index in _indices("categories", cells, header, indices, title)
    }
    columns, wrong = [], dict[int, str]()
    for index in indices:
        if header[index] in texts:
            columns.append(np.array([0.0 if level_of(cell) else np.nan for cell in texts[header[index]]]))
            continue
        values = column_values(frame[keys[index]], header[index], title)
        read = _days if index in dates else _numeric
        columns.append(read(values, header[index], title, cells, _gaps(target), wrong))
    labels = np.empty(0) if target is None else column_values(frame[keys[target]], header[target], title)
    rows = len(labels) if target is not None or not columns else len(columns[0])
    if any(len(column) != rows for column in columns):
        raise InputError(f"the columns of {title} differ in length.")
    x = np.stack(columns, axis=1) if columns else np.empty((rows, 0))
    plain = labels if labels.dtype.kind in "iubf" else labels.tolist()
    kept = [row for row in range(rows) if row not in wrong]
    if wrong:
        x, texts = x[kept], {name: column[kept] for name, column in texts.items()}
        plain = [plain[row] for row in kept] if target is not None else plain
    names = [header[index] for index in indices]
    where = Where(title, "row", kept, header[target] if target is not None else None, header[-1], _gaps(target))
    return _made(x, names, texts, plain, where, precision, cells, [wrong[row] for row in sorted(wrong)])


class Where(NamedTuple):
    """Where rows are from, for sentences about them."""

    title: str
    unit: str
    """What is counted: lines of a file, rows of a frame."""
    numbers: Sequence[int]
    target: str | None
    last: str
    gaps: str
    """What to do about a missing value."""

    def cell(self, row: int, column: str) -> str:
        return f"{self.unit} {self.numbers[row]}, column '{shown(column)}' of {self.title}"


def _made(
    x: NDArray[np.float64],
    names: Sequence[str],
    texts: Mapping[str, Sequence[Any] | NDArray[Any]],
    labels: Sequence[Any] | NDArray[Any],
    where: Where,
    precision: Precision | None,
    cells: Cells,
    skipped: list[str],
) -> Table:
    """The table of what was read, all numbers finite; rows with others are refused or left out."""
    float_type(kind := precision or "float32")  # refuses others
    with np.errstate(over="ignore"):
        wrong = np.isinf(x.astype(kind)) if cells.missing else ~np.isfinite(x.astype(kind))
    bad: dict[int, str] = {}
    for row in np.flatnonzero(wrong.any(axis=1)).tolist():
        bad[row] = _not_finite(x, row, int(wrong[row].argmax()), names, where, kind)
        if not cells.skip:
            raise InputError(bad[row])
    if cells.skip and where.target is not None:
        for row in Labels(labels, str).missing():
            bad.setdefault(row, f"{where.cell(row, where.target)} holds no target.")
    if bad:
        kept = [row for row in range(len(x)) if row not in bad]
        x, labels = x[kept], [labels[row] for row in kept] if where.target is not None else labels
        texts = {name: [column[row] for row in kept] for name, column in texts.items()}
        where = where._replace(numbers=[where.numbers[row] for row in kept])
        skipped = [*skipped, *(bad[row] for row in sorted(bad))]
    if len(skipped) > len(x):
        raise InputError(
            f"{len(skipped)} of {len(skipped) + len(x)} rows of {where.title} cannot be read, too many to be skipped; "
            f"the first: {skipped[0]}"
        )
    levels: dict[str, tuple[str, ...]] = {}
    for name, column in texts.items():
        x[:, names.index(name)], levels[name] = coded(column)
    for index, name in enumerate(names if precision is None else ()):
        check_single(x[:, index], f"column '{shown(name)}' of {where.title}")
    numbers = x.astype(kind)
    for name in set(cells.dates) & set(names):
        numbers[:, names.index(name)] = rounded_down(x[:, names.index(name)], kind)
    made_labels = None
    if where.target is not None:
        target = where.target
        made_labels = Labels(labels, lambda row: where.cell(row, target))
    return Table(
        where.title, tuple(names), numbers, where.last, where.target, made_labels, levels, where.numbers, tuple(skipped)
    )


def warn_skipped(title: str, skipped: Sequence[str]) -> None:
    """Say in one sentence how many rows were left out, and why the first."""
    if skipped:
        rows = "a row" if len(skipped) == 1 else f"{len(skipped)} rows"
        warnings.warn(f"{rows} of {title} skipped, the first because {skipped[0]}", ParleyWarning, stacklevel=2)


def _not_finite(
    x: NDArray[np.float64], row: int, column: int, names: Sequence[str], where: Where, kind: Precision
) -> str:
    value = x[row, column]
    start = f"{where.cell(row, names[column])} holds '{value}', which is"
    if np.isnan(value):
        return f"{start} no finite number; {where.gaps}."
    return f"{start} {'no finite number' if np.isinf(value) else f'too large for {kind}'}; fill it in or leave it out."


def _indices(
    setting: Literal["categories", "dates"], cells: Cells, header: Sequence[str], inputs: Sequence[int], title: str
) -> list[int]:
    """Where the columns of texts or dates are, which must be inputs."""
    named = getattr(cells, setting)
    for name in named if inputs else ():
        if name not in header or header.index(name) not in inputs:
            raise InputError(f"{title} has no input column '{shown(name)}', which {setting} names.")
        if name in cells.categories and name in cells.dates:
            raise InputError(f"column '{shown(name)}' cannot be among both categories and dates.")
    return [index for index in inputs if header[index] in named]


def columns_of(frame: Any) -> list[Any]:
    """The keys of a frame's columns."""
    if isinstance(frame, Mapping):
        return list(frame)
    names = getattr(frame, "column_names", None)  # pyarrow's `columns` are the data
    keys = names if names is not None else getattr(frame, "columns", None)
    if keys is None or not hasattr(frame, "__getitem__"):
        raise InputError(f"a data frame or a dictionary of columns is needed, not {type(frame).__name__}.")
    return list(keys)


def column_values(column: Any, name: str, title: str) -> NDArray[Any]:
    """A column as a one-dimensional array."""
    where = f"column '{shown(name)}' of {title}"
    try:
        values = np.asarray(column)
    except (ValueError, TypeError):  # lists of different lengths, for one
        raise InputError(f"{where} cannot be read; it must have one value per row.") from None
    if values.ndim != 1:
        raise InputError(f"{where} has the shape {values.shape}; it must have one value per row.")
    for row, value in enumerate(values if values.dtype.kind == "O" else ()):
        if hasattr(value, "__len__") and not isinstance(value, str | bytes):
            raise InputError(f"{where} holds a {type(value).__name__} in row {row}; it must have one value per row.")
    return values


def check_names(names: list[str], title: str) -> list[str]:
    """Column names, if each is there once and can be printed."""
    seen: set[str] = set()
    if not names:
        raise InputError(f"{title} needs a header line that names its columns.")
    for number, name in enumerate(names, 1):
        if not name:
            raise InputError(f"column {number} of {title} has no name (an index that should not be there?).")
        if name in seen:
            raise InputError(f"{title} has two columns '{shown(name)}'; keep one.")
        if not name.isprintable():
            raise InputError(f"column {number} of {title} has control characters in its name, '{shown(name)}'.")
        seen.add(name)
    return names


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names for a sentence."""
    return ", ".join([shown(name, 40) for name in names[:most]] + (["..."] if len(names) > most else []))


def _gaps(target: int | None) -> str:
    """What to do about a value that is not there; of samples to predict (no target) nothing can be allowed."""
    allow = (
        ", or allow missing values (missing = true) and let 'parley stats STUDY --freeze FILE --fill median' fill them "
        'in (in Python: statistics(federation).preprocessing("standard", fill="median").apply(federation))'
    )
    return "fill it in" + ("" if target is None else allow)


def _numeric(
    values: NDArray[Any], name: str, title: str, cells: Cells, gaps: str, wrong: dict[int, str]
) -> NDArray[np.float64]:
    """A column's numbers; of rows that are left out `wrong` says why."""
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    numbers = np.full(len(values), np.nan)
    for i, value in enumerate(values.astype(object)):
        if isinstance(value, bool | int | float) or type(value).__name__ == "Decimal":
            numbers[i] = value
            continue
        missing = value is None or value != value or "NA" in type(value).__name__
        missing |= isinstance(value, str) and not value.strip()
        if missing and cells.missing:
            continue
        held = f"holds a {type(value).__name__}, not a number"
        if looks_like_date(value) and not missing:
            held = f"holds '{shown(value, 40)}', {_DATES}"
        elif isinstance(value, str):
            held = f"holds '{shown(value, 40)}'; inputs must be numbers: {_TEXTS}"
        sentence = f"row {i}, column '{shown(name)}' of {title} {f'is empty; {gaps}' if missing else held}."
        if not cells.skip:
            raise InputError(sentence)
        wrong.setdefault(i, sentence)
    return numbers


def _days(
    values: NDArray[Any], name: str, title: str, cells: Cells, gaps: str, wrong: dict[int, str]
) -> NDArray[np.float64]:
    """A column's dates as numbers; of rows that are left out `wrong` says why."""
    days = np.full(len(values), np.nan)
    for i, value in enumerate(values):
        sentence = f"is empty; {gaps}"
        try:
            days[i] = day_of(value)
        except (ValueError, OverflowError):
            sentence = not_a_date(value)
        else:
            if cells.missing or days[i] == days[i]:
                continue
        sentence = f"row {i}, column '{shown(name)}' of {title} {sentence}."
        if not cells.skip:
            raise InputError(sentence)
        wrong.setdefault(i, sentence)
    return days


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        word = cell.strip()
        if word not in BOOLEANS:
            raise
        return BOOLEANS[word]


def _day(cell: str, gap: str) -> float:
    return day_of(cell) if cell.strip() else float(gap)


def _header(names: list[str], title: str) -> list[str]:
    """The names in a first line, unless it is a line of data or has other separators than commas."""
    if len(names) == 1 and (separator := next((mark for mark in ";\t|" if mark in names[0]), None)):
        raise InputError(f"the columns of {title} are separated by {separator!r}; separate them by commas.")
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return check_names(names, title)
    if numbers and numbers not in ([*range(len(names))], [*range(1, len(names) + 1)]):  # columns that are counted
        raise InputError(f"{title} needs a header line that names its columns, but the first line holds only numbers.")
    return check_names(names, title)


def _bad_cell(
    row: Sequence[str],
    indices: Sequence[int],
    texts: Container[int],
    dates: Container[int],
    header: Sequence[str],
    line: str,
    title: str,
    cells: Cells,
    gaps: str,
) -> str:
    """What is wrong with a row that could not be read, in a sentence."""
    for index in indices:
        where, cell = f"{line}, column '{shown(header[index])}' of {title}", row[index]
        if not cell.strip():
            if cells.missing:
                continue
            return f"{where} is empty; {gaps}."
        try:
            _ = index in texts or (day_of(cell) if index in dates else _number(cell))
        except ValueError:
            if index in dates:
                return f"{where} {not_a_date(cell)}."
            if looks_like_date(cell):
                return f"{where} holds '{shown(cell, 40)}', {_DATES}."
            return f"{where} holds '{shown(cell, 40)}'; inputs must be numbers: {_TEXTS}."
    raise AssertionError("a row without a bad cell")


def raw_rows(table: Table, info: DataInfo) -> Tensor:
    """The rows of a table as `Run.predict` takes them: texts by their number among the levels agreed on."""
    if info.scaling is None and info.levels:
        table = table.coded(dict(zip(info.categories, info.levels, strict=True)))
    x = torch.from_numpy(np.ascontiguousarray(table.x))
    if isinstance(info.scaling, Encoding):
        x = info.scaling.coded(x, tuple(table.levels), tuple(table.levels.values()))
    return x

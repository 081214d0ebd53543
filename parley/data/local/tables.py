"""Tables: named columns of numbers and one of targets, from .csv and .parquet files and from data frames."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError
from parley.core.inputs import shown
from parley.data.convert import Precision, check_single, float_type
from parley.data.local.bounds import check_expansion, parsed
from parley.data.local.labels import Labels

TABLES = (".csv", ".parquet")
BOOLEANS = {"True": 1.0, "False": 0.0, "TRUE": 1.0, "FALSE": 0.0, "true": 1.0, "false": 0.0}
"""Words in a .csv file that are numbers: what pandas, R and spreadsheets, and JSON write for a boolean."""
Layout = Callable[[Sequence[str], str], tuple[list[int], int | None]]
"""From a table's header and title to the places of its inputs and of its target (None: it has none)."""


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

    def ordered(self, names: Sequence[str]) -> Table:
        """The same table with its columns in this order; they must be exactly these."""
        missing, extra = set(names) - set(self.names), set(self.names) - set(names)
        if missing or extra:
            gap = f"lacks the column '{shown(min(missing))}'" if missing else f"has a column '{shown(min(extra))}'"
            rest = "that the others have" if missing else "that the others do not have"
            raise InputError(f"{self.title} {gap} {rest}; all clients need the same columns.")
        if tuple(names) == self.names:
            return self
        places = {name: place for place, name in enumerate(self.names)}
        return replace(self, names=tuple(names), x=self.x[:, [places[name] for name in names]])


def to_train_on(target: str | None, leave_out: Sequence[str] = ()) -> Layout:
    """All columns are inputs but the target: the one of that name, by default the last."""

    def layout(header: Sequence[str], title: str) -> tuple[list[int], int | None]:
        if len(header) < 2:
            raise InputError(f"{title} needs a header line with at least two columns.")
        if target is not None and target not in header:
            raise InputError(f"{title} has no column '{shown(target)}'; its columns are {listed(header)}.")
        place = len(header) - 1 if target is None else list(header).index(target)
        return [n for n, name in enumerate(header) if n != place and name not in leave_out], place

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
        places = {name: place for place, name in enumerate(header)}
        missing = next((name for name in names if name not in places), None)
        if missing is not None:
            raise InputError(f"{title} lacks the column '{shown(missing)}'; its columns are {listed(header)}.")
        if names:
            return [places[name] for name in names], None
        kept = [place for name, place in places.items() if name != target]
        kept = kept[:-1] if len(kept) == count + 1 else kept
        if len(kept) != count:
            raise InputError(f"{title} has {len(kept)} input columns, but the model takes {count}.")
        return kept, None

    return layout


def read_table(file: Path, layout: Layout, precision: Precision | None = None, missing: bool = False) -> Table:
    """A table in a file, by its ending; with `missing`, cells may be empty. Without `precision`, columns become float32
    unless that cannot tell their numbers apart."""
    return (_read_csv if file.suffix.lower() == ".csv" else _read_parquet)(file, layout, precision, missing)


def _read_csv(file: Path, layout: Layout, precision: Precision | None, missing: bool) -> Table:
    title = f"'{shown(file)}'"
    values, cells, lines = array("d"), [], array("q")
    with parsed(title, ".csv"), file.open(newline="", encoding="utf-8-sig") as stream:
        reader = csv.reader(stream, strict=True)
        header = _header([name.strip() for name in next(reader, [])], title)
        places, target = layout(header, title)
        for row in reader:
            if not row:
                continue
            line = reader.line_num
            if len(row) != len(header):
                raise InputError(f"line {line} of {title} has {len(row)} columns, but the header has {len(header)}.")
            lines.append(line)
            if target is not None:
                cells.append(row[target])
            try:
                if missing:
                    row = [cell if cell.strip() else "nan" for cell in row]
                values.extend([_number(row[place]) for place in places])
            except ValueError:
                raise InputError(_bad_cell(row, places, header, f"line {line}", title, _gaps(target))) from None
    names = [header[place] for place in places]
    x = np.array(values, np.float64).reshape(len(lines), len(names))
    numbers = finite(x, names, title, lambda row: f"line {lines[row]}", precision, missing, _gaps(target))
    if target is None:
        return Table(title, tuple(names), numbers, header[-1])
    labels = Labels(cells, _placer(title, "line", header[target], lines))
    return Table(title, tuple(names), numbers, header[-1], header[target], labels)


def _read_parquet(file: Path, layout: Layout, precision: Precision | None, missing: bool) -> Table:
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
    return read_frame(frame, title, layout, precision, missing)


def read_frame(
    frame: Any, title: str, layout: Layout, precision: Precision | None = None, missing: bool = False
) -> Table:
    """Anything with named columns: a data frame, a table of pyarrow, a dictionary."""
    keys = columns_of(frame)
    header = check_names([str(key) for key in keys], title)
    places, target = layout(header, title)
    names = [header[place] for place in places]
    columns = [_numeric(frame[keys[place]], header[place], title, missing, _gaps(target)) for place in places]
    labels = np.empty(0) if target is None else column_values(frame[keys[target]], header[target], title)
    rows = len(labels) if target is not None or not columns else len(columns[0])
    if any(len(column) != rows for column in columns):
        raise InputError(f"the columns of {title} differ in length.")
    x = np.stack(columns, axis=1) if columns else np.empty((rows, 0))
    numbers = finite(x, names, title, lambda row: f"row {row}", precision, missing, _gaps(target))
    if target is None:
        return Table(title, tuple(names), numbers, header[-1])
    plain = labels if labels.dtype.kind in "iubf" else labels.tolist()
    found = Labels(plain, _placer(title, "row", header[target], range(rows)))
    return Table(title, tuple(names), numbers, header[-1], header[target], found)


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


def finite(
    x: NDArray[np.float64],
    names: Sequence[str],
    title: str,
    row: Callable[[int], str],
    precision: Precision | None,
    missing: bool = False,
    gaps: str = "fill it in",
) -> NDArray[Any]:
    """The numbers in this precision, if all are finite there; NaN may be `missing`, or `gaps` tells what to do."""
    float_type(kind := precision or "float32")  # refuses others
    with np.errstate(over="ignore"):
        numbers = x.astype(kind)
    wrong = np.isinf(numbers) if missing else ~np.isfinite(numbers)
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        where = f"{row(i)}, column '{shown(names[j])}' of {title} holds '{x[i, j]}', which is"
        if np.isnan(x[i, j]):
            raise InputError(f"{where} no finite number; {gaps}.")
        what = "no finite number" if np.isinf(x[i, j]) else f"too large for {kind}"
        raise InputError(f"{where} {what}; fill it in or leave it out.")
    for column, name in enumerate(names if precision is None else ()):
        check_single(x[:, column], f"column '{shown(name)}' of {title}")
    return numbers


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


def _placer(title: str, unit: str, column: str, numbers: Sequence[int]) -> Callable[[int], str]:
    return lambda i: f"{unit} {numbers[i]}, column '{shown(column)}' of {title}"


def _numeric(column: Any, name: str, title: str, empty: bool, gaps: str) -> NDArray[np.float64]:
    values = column_values(column, name, title)
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    numbers = values.astype(object)
    for i, value in enumerate(values.tolist()):
        if isinstance(value, bool | int | float) or type(value).__name__ == "Decimal":
            continue
        where = f"row {i}, column '{shown(name)}' of {title}"
        if isinstance(value, str) and value.strip():
            raise InputError(f"{where} holds '{shown(value, 40)}'; inputs must be numbers: encode texts beforehand.")
        missing = value is None or value != value or (isinstance(value, str) or "NA" in type(value).__name__)
        if missing and empty:
            numbers[i] = np.nan
            continue
        held = f"is empty; {gaps}" if missing else f"holds a {type(value).__name__}, not a number"
        raise InputError(f"{where} {held}.")
    return numbers.astype(np.float64)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        word = cell.strip()
        if word not in BOOLEANS:
            raise
        return BOOLEANS[word]


def _header(names: list[str], title: str) -> list[str]:
    """The names in a first line, unless it is a line of data or has other separators than commas."""
    if len(names) == 1 and (found := next((mark for mark in ";\t|" if mark in names[0]), None)):
        raise InputError(f"the columns of {title} are separated by {found!r}; separate them by commas.")
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return check_names(names, title)
    if numbers and numbers not in ([*range(len(names))], [*range(1, len(names) + 1)]):  # columns that are counted
        raise InputError(f"{title} needs a header line that names its columns, but the first line holds only numbers.")
    return check_names(names, title)


def _bad_cell(
    row: Sequence[str], places: Sequence[int], header: Sequence[str], line: str, title: str, gaps: str
) -> str:
    for place in places:
        try:
            _number(row[place])
        except ValueError:
            where = f"{line}, column '{shown(header[place])}' of {title}"
            if not row[place].strip():
                return f"{where} is empty; {gaps}."
            return f"{where} holds '{shown(row[place], 40)}'; inputs must be numbers: encode texts beforehand."
    raise AssertionError("a row without a bad cell")

"""A run's numbers as one tidy table for other programs."""

from __future__ import annotations

import csv
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parley.core.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from parley.store.records import RoundRecord

COLUMNS = ("round", "metric", "client", "value")
Row = tuple[int, str, str, float]


def rows(records: Sequence[RoundRecord]) -> Iterator[Row]:
    """A row per metric and round (client ''), followed by a row per client it was measured on."""
    for record in records:
        for name, metric in sorted(record.metrics.items()):
            yield record.number, name, "", metric.value
            for client, value in metric.clients.items():
                yield record.number, name, client, value


def write_csv(records: Sequence[RoundRecord], path: Path) -> None:
    def write(target: Path) -> None:
        with target.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(COLUMNS)
            table.writerows(rows(records))

    _replacing(path, write)


def write_parquet(records: Sequence[RoundRecord], path: Path) -> None:
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UnsupportedError("Parquet needs the package pyarrow; install it or export to a .csv file.") from None
    columns = list(zip(*rows(records), strict=True)) or [(), (), (), ()]
    types = (arrow.int64(), arrow.string(), arrow.string(), arrow.float64())
    arrays = [arrow.array(column, type=kind) for column, kind in zip(columns, types, strict=True)]
    table = arrow.Table.from_arrays(arrays, names=list(COLUMNS))
    _replacing(path, lambda target: parquet.write_table(table, target))


def _replacing(path: Path, write: Callable[[Path], None]) -> None:
    """Write beside the file and put it in place when it is complete."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise InputError(f"{path} cannot be written: {error.strerror}.") from None

"""A run's numbers, and who was missing, as tidy tables for other programs."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from parley.core.errors import UnsupportedError
from parley.core.files import replacing
from parley.core.text import plain_cell

if TYPE_CHECKING:
    from pandas import DataFrame

    from parley.store.records import RoundRecord
    from parley.store.runs import RunStore


class Measurement(NamedTuple):
    """One value of one metric; `client` is empty for the round's own value."""

    round: int
    metric: str
    client: str
    value: float


class Absence(NamedTuple):
    """A client that did not contribute to a round."""

    client: str
    round: int
    reason: str
    """The end of a sentence that begins with the client: `raised ValueError: ...`."""


def measurements(records: Iterable[RoundRecord]) -> Iterator[Measurement]:
    """A row per metric and round, followed by a row per client it was measured on."""
    for record in records:
        for name, metric in sorted(record.metrics.items()):
            yield Measurement(record.number, name, "", metric.value)
            for client, value in metric.clients.items():
                yield Measurement(record.number, name, client, value)


def absences(records: Iterable[RoundRecord]) -> Iterator[Absence]:
    """A row per client that failed in a round."""
    for record in records:
        for failure in record.failures:
            yield Absence(failure.client, record.number, failure.reason)


@dataclass(frozen=True)
class Table:
    """Columns by name and type, and the rows that records give."""

    columns: dict[str, str]
    """Name -> int64, string or float64."""
    rows: Callable[[Sequence[RoundRecord]], Iterator[tuple[Any, ...]]]

    def write(self, records: Sequence[RoundRecord], path: Path) -> None:
        """Write the table in the format that the file's name says."""
        (self.write_parquet if path.suffix == ".parquet" else self.write_csv)(records, path)

    def write_csv(self, records: Sequence[RoundRecord], path: Path) -> None:
        """Text that a spreadsheet would take for a formula gets a quote in front."""
        with replacing(path) as part, part.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            table = csv.writer(file)
            table.writerow(self.columns)
            for row in self.rows(records):
                table.writerow([plain_cell(cell) if isinstance(cell, str) else cell for cell in row])

    def write_parquet(self, records: Sequence[RoundRecord], path: Path) -> None:
        arrow = needed("pyarrow", "Parquet needs the package pyarrow; install it or export to a .csv file.")
        parquet: Any = importlib.import_module("pyarrow.parquet")
        arrays = [
            arrow.array(column, type=getattr(arrow, kind)())
            for column, kind in zip(self._by_column(records), self.columns.values(), strict=True)
        ]
        with replacing(path) as part:
            parquet.write_table(arrow.Table.from_arrays(arrays, names=list(self.columns)), part)

    def frame(self, records: Sequence[RoundRecord]) -> DataFrame:
        pandas = needed("pandas", "data frames need the package pandas; install it or export to a .csv file.")
        frame: DataFrame = pandas.DataFrame(dict(zip(self.columns, self._by_column(records), strict=True)))
        return frame

    def _by_column(self, records: Sequence[RoundRecord]) -> list[tuple[Any, ...]]:
        return list(zip(*self.rows(records), strict=True)) or [()] * len(self.columns)


METRICS = Table({"round": "int64", "metric": "string", "client": "string", "value": "float64"}, measurements)
FAILURES = Table({"client": "string", "round": "int64", "reason": "string"}, absences)


def results(store: RunStore | Path | str) -> DataFrame:
    """All runs of a store as one pandas DataFrame: run, name, seed, round, metric, value (of rounds, not of clients).

    `store`: an open one, or the path of one that exists.
    `results(store).query("metric == 'central/accuracy'").groupby(["name", "round"])["value"].mean()` has curves.
    """
    if isinstance(store, str | Path):
        from parley.store.runs import RunStore  # which needs this module

        with RunStore(store, create=False) as opened:
            return results(opened)
    pandas = needed("pandas", "data frames need the package pandas; install it or export to a .csv file.")
    parts = []
    for info in store.runs():
        about = {"run": info.id, "name": info.name, "seed": info.config.get("seed")}
        for metric, (rounds, values) in store.curves(info.id).items():
            parts.append(pandas.DataFrame({**about, "round": rounds, "metric": metric, "value": values}))
    columns = ["run", "name", "seed", "round", "metric", "value"]
    frame: DataFrame = pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame(columns=columns)
    return frame[columns]


def needed(package: str, otherwise: str) -> Any:
    """A package that Parley does without, or a sentence."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise UnsupportedError(otherwise) from None

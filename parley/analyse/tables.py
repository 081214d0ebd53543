"""Rows of results as CSV and as data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parley.core.errors import InputError
from parley.core.text import plain_cell

if TYPE_CHECKING:
    from pandas import DataFrame


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, names safe for spreadsheets."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({name: plain_cell(value) if isinstance(value, str) else value for name, value in row.items()})
    return text.getvalue()


def data_frame(rows: Sequence[Mapping[str, Any]], index: str) -> DataFrame:
    """Rows as a pandas DataFrame with one of their columns as index."""
    try:
        import pandas
    except ImportError:
        raise InputError("data frames need the package pandas; install it or write a .csv file.") from None
    return pandas.DataFrame(rows).set_index(index)

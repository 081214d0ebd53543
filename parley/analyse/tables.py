"""Rows of results as data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parley.core.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame


def data_frame(rows: Sequence[Mapping[str, Any]], index: str) -> DataFrame:
    """Rows as a pandas DataFrame with one of their columns as index."""
    try:
        import pandas
    except ImportError:
        raise InputError("data frames need the package pandas; install it or write a .csv file.") from None
    return pandas.DataFrame(rows).set_index(index)

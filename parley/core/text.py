"""Text of others, safe for terminals and spreadsheets; text for others, without paths of this machine."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_PATH = re.compile(r"(?<![\w.:/])(?:file://)?~?/(?:[^\s/'\"<>|:;,()]+/)*([^\s/'\"<>|:;,()]+)/?")
_QUOTED = re.compile(r"(['\"])(?:file://)?~?/(?:(?!\1)[^/\n])+(?:/(?:(?!\1)[^/\n])+)*/?\1")


def printable(text: object) -> str:
    """`text` with everything that a terminal would obey or hide written out: escape sequences, line breaks, bidi marks.

    >>> printable("c1\\x1b[2J")
    'c1\\\\x1b[2J'
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shown(value: object, most: int = 200) -> str:
    r"""A text that came from outside, for a sentence: printable, cut where it is long.

    >>> shown("red\x1b[31m\n")
    'red\\x1b[31m\\n'
    """
    text = str(value)
    return printable(text if len(text) <= most else f"{text[: most - 1]}…")


def plain_cell(text: str) -> str:
    """`text` for a cell of a spreadsheet: what would be taken for a formula gets a quote in front.

    >>> plain_cell("=1+1"), plain_cell("client 7")
    ("'=1+1", 'client 7')
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Rows as CSV, texts safe for spreadsheets; the columns are those of the first row unless they are given."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]) if columns is None else columns, lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({name: plain_cell(value) if isinstance(value, str) else value for name, value in row.items()})
    return text.getvalue()


def portable(config: Any) -> Any:
    """A description without paths of this machine: of a folder or file only its name is kept."""
    if isinstance(config, Mapping):
        return {key: portable(value) for key, value in config.items()}
    if isinstance(config, list):
        return [portable(value) for value in config]
    if isinstance(config, str) and Path(config).is_absolute():
        return Path(config).name
    return config


def without_paths(text: str) -> str:
    """A sentence in which absolute paths are names only.

    >>> without_paths("cannot read '/home/ann/my study/a.csv' (/home/ann/b.csv, line 3)")
    "cannot read 'a.csv' (b.csv, line 3)"
    """
    quoted = _QUOTED.sub(lambda match: f"{match[1]}{Path(match[0][1:-1]).name}{match[1]}", text)
    return _PATH.sub(lambda match: match[1], quoted)

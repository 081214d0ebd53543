"""How results show themselves: in one line as text, as a small table in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from html import escape
from itertools import islice
from reprlib import Repr
from typing import Any

from parley.core.text import printable

MOST_ROWS = 20
"""Rows of a table in a notebook; the others are counted."""


class Brief:
    """For dataclasses that hold much: a repr of one line, long values cut, tensors by their shape, empty ones left out.

    The dataclass says repr=False.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        held = [(field.name, getattr(self, field.name)) for field in fields(self) if field.repr]  # type: ignore[arg-type]
        parts = [f"{name}={short(value)}" for name, value in held if not _empty(value)]
        return f"{type(self).__name__}({', '.join(parts)})"


def short(value: object) -> str:
    """A value in a few words."""
    return _short.repr(value)


def text(value: object) -> str:
    """Anything as text of a page: control characters shown, markup escaped."""
    return escape(printable(str(value)))


def as_html(title: str, rows: Iterable[Sequence[object]], heads: Sequence[str] = (), notes: Iterable[str] = ()) -> str:
    """A table for a notebook, with sentences below it; everything is escaped, None is a dash."""
    coming = iter(rows)
    shown = [f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in islice(coming, MOST_ROWS)]
    if (left := sum(1 for _ in coming)) > 0:
        notes = [f"and {left:,} more rows.", *notes]
    head = f"<thead><tr>{''.join(f'<th>{text(name)}</th>' for name in heads)}</tr></thead>" if heads else ""
    below = "".join(f"<p>{text(note)}</p>" for note in notes if note)
    return f"<div><b>{text(title)}</b><table>{head}<tbody>{''.join(shown)}</tbody></table>{below}</div>"


def _cell(value: object) -> str:
    content = "–" if value is None else f"{value:.4g}" if isinstance(value, float) else text(value)
    return f'<td style="text-align: left">{content}</td>'


def _empty(value: object) -> bool:
    return value is None or (isinstance(value, str | tuple | list | dict | frozenset) and not value)


class _Short(Repr):
    """Python's shortened reprs, which also know what has a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = 4
        self.maxstring = self.maxother = 80

    def repr_Tensor(self, value: Any, level: int) -> str:
        return f"<{str(value.dtype).removeprefix('torch.')} {list(value.shape)}>"

    repr_Parameter = repr_ndarray = repr_Tensor

    def repr_instance(self, value: Any, level: int) -> str:
        if hasattr(value, "named_modules"):  # a network's own repr is many lines
            return f"<{type(value).__name__}>"
        return super().repr_instance(value, level)

    def repr_function(self, value: Any, level: int) -> str:
        return str(value.__qualname__)


_short = _Short()

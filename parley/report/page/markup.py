"""Pieces of HTML: everything that comes from a run is escaped here, once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from parley.core.show import text as text


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    caption: str,
    numeric: Sequence[int] = (),
    stacked: bool = False,
) -> str:
    """A table with a caption; the columns `numeric` stand to the right. Cells are escaped; None is a dash.

    `stacked`: on a narrow screen each row is a list of its cells, with their heads.
    """
    cells = "".join(f'<th scope="col"{_right(i in numeric)}>{text(head)}</th>' for i, head in enumerate(heads))
    about = [f' data-head="{text(head)}"' if stacked else "" for head in heads]
    kind = f' class="stacked{"" if numeric else " prose"}"' if stacked else ""
    body = []
    for row in rows:
        first, *rest = ["–" if value is None else text(value) for value in row]
        columns = "".join(f"<td{_right(i in numeric)}{about[i]}>{value}</td>" for i, value in enumerate(rest, 1))
        body.append(f'<tr><th scope="row">{first}</th>{columns}</tr>')
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption)}">'
        f"<table{kind}><caption><span>{text(caption)}</span></caption>"
        f"<thead><tr>{cells}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _right(wanted: bool) -> str:
    return ' class="number"' if wanted else ""


def section(name: str, title: str, *parts: str, about: str = "") -> str:
    """A section with a heading; empty if it has nothing to say."""
    if not any(parts):
        return ""
    intro = f'<p class="about">{text(about)}</p>' if about else ""
    head = f'<h2 id="{name}-title">{text(title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{intro}{"".join(parts)}</section>'


def chart(name: str, words: str, caption: str) -> str:
    """Where the page's script draws: `words` say what to those who cannot see it."""
    return (
        f'<figure><div id="{name}" role="group" aria-label="{text(words)}"></div>'
        f"<figcaption>{text(caption)}</figcaption></figure>"
    )


def folded(title: str, *parts: str) -> str:
    """Something to unfold."""
    return f"<details><summary>{text(title)}</summary>{''.join(parts)}</details>"


def code(value: str) -> str:
    """Text to copy, as it is."""
    return f'<pre tabindex="0"><code>{escape(value)}</code></pre>'


def embedded(name: str, value: Any) -> str:
    """Data for the page's own script; nothing in it can end the element."""
    body = json.dumps(_short(value), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{body}</script>'


def _short(value: Any) -> Any:
    """Numbers with five digits, and null for those that are none.

    A last digit of 5 would be rounded once more where the number is shown: such numbers have more digits.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        for digits in (5, 8):
            brief = f"{value:.{digits}g}"
            if brief.partition("e")[0][-1] != "5":
                return float(brief)
        return value
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list | tuple) else value

"""Runs as lines of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parley.core.text import printable
from parley.engine.roll_call import over_clients
from parley.study.listing import Entry, Seeds


def listed(groups: Sequence[Seeds]) -> dict[str, Any]:
    """What the page shows, the newest first; texts are plain, the page's script never makes markup of them.

    A run says in which of `groups` it is, null if it is the only one of its kind.
    """
    newest_first = sorted(groups, key=lambda group: max(entry.info.created for entry in group.entries), reverse=True)
    runs, titles = [], []
    for group in newest_first:
        several = len(group.entries) > 1
        if several:
            titles.append(_title(group))
        runs += [_line(entry) | {"group": len(titles) - 1 if several else None} for entry in group.entries]
    return {"runs": runs, "groups": titles}


def _line(entry: Entry) -> dict[str, Any]:
    info, name = entry.info, entry.headline
    rounds, seed = info.config.get("rounds"), info.config.get("seed")
    return {
        "id": info.id,
        "name": printable(info.name),
        "seed": seed if isinstance(seed, int) else None,
        "status": info.status,
        "round": info.rounds,
        "rounds": rounds if isinstance(rounds, int) else None,
        "metric": printable(name),
        "result": _number(name, entry.numbers.get(name)) + over_clients(entry.coverage),
        "megabytes": _megabytes(entry.sent),
        "begun": f"{info.created:%Y-%m-%d %H:%M}",
    }


def _title(group: Seeds) -> dict[str, Any]:
    name = group.headline
    half = _number(name, group.half_interval(name))
    return {
        "title": printable(group.title),
        "done": group.done,
        "metric": printable(name),
        "result": _number(name, group.mean(name)) + (f" ±{half}" if half else "") + over_clients(group.coverage),
        "megabytes": _megabytes(group.sent),
    }


def _number(name: str, value: Any) -> str:
    if not name or not isinstance(value, int | float):
        return ""
    return f"{100 * value:.2f}%" if name.endswith("accuracy") else f"{value:.4g}"


def _megabytes(value: Any) -> str:
    if not isinstance(value, int | float):
        return ""
    return f"{value / 1e6:.3g}" if value < 1e9 else f"{value / 1e6:,.0f}"

"""A run as one line of the page."""

from __future__ import annotations

from typing import Any

from parley.core.text import printable
from parley.store.runs import RunInfo


def listed(info: RunInfo) -> dict[str, Any]:
    """What the page shows of a run; texts are plain, the page's script never makes markup of them."""
    rounds = info.config.get("rounds")
    judged = [name for name in info.summary if name.startswith(("central/", "clients/"))]
    name = next((name for name in judged if not name.endswith("/loss")), judged[0] if judged else "")
    sent = info.summary.get("up/bytes")
    return {
        "id": info.id,
        "name": printable(info.name),
        "status": info.status,
        "round": info.rounds,
        "rounds": rounds if isinstance(rounds, int) else None,
        "result": _result(name, info.summary.get(name)),
        "megabytes": f"{sent / 1e6:.3g}" if isinstance(sent, int | float) else "",
        "begun": f"{info.created:%Y-%m-%d %H:%M}",
    }


def _result(name: str, value: Any) -> str:
    if not name or not isinstance(value, int | float):
        return ""
    shown = f"{100 * value:.2f}%" if name.endswith("accuracy") else f"{value:.4g}"
    return f"{printable(name)} {shown}"

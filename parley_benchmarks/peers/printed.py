"""The rows as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parley_benchmarks.peers.setting import METHODS
from parley_benchmarks.peers.verdict import Row

STYLES = {"reaches it": "green", "not offered": "dim"}


def peers_table(rows: Sequence[Row]) -> RenderableType:
    """One line per library, method and setting; then what is known of those that end elsewhere."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("library", "method", "clients", "weights"):
        drawn.add_column(heading, no_wrap=True)
    drawn.add_column("off by", justify="right", no_wrap=True)
    drawn.add_column("verdict")
    for row in rows:
        title = METHODS[row.method].title + (f", {row.variant}" if row.variant else "")
        distance = "" if row.distance is None else f"{row.distance:.1e}"
        verdict = row.verdict + (f": {row.where or row.error}" if row.where or row.error else "")
        drawn.add_row(
            f"{row.library} {row.version}".strip(),
            title,
            row.setting,
            row.weights,
            distance,
            Text(verdict, style=STYLES.get(row.verdict, "yellow")),
        )
    reasons: dict[str, list[float]] = {}
    for row in rows:
        if row.explained is not None:
            heading = f"{row.library} {row.version}, {METHODS[row.method].title}: {row.cause}"
            reasons.setdefault(heading, []).append(row.explained)
    same = "Its arithmetic in NumPy gives the same to"
    notes = [Text(f"{reason}. {same} {max(off):.0e}.") for reason, off in reasons.items()]
    return Group(drawn, *notes)

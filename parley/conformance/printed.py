"""The checks as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parley.conformance.check import Check


def table(checks: Sequence[Check]) -> RenderableType:
    """One line per check: what is said, how far off it is, how far off it may be; then the verdict."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("", width=1)
    drawn.add_column("statement")
    drawn.add_column("off by", justify="right", no_wrap=True)
    drawn.add_column("allowed", justify="right", no_wrap=True)
    for check in checks:
        style = "" if check.passed else "bold red"
        mark = Text("✓", style="green") if check.passed else Text("✗", style="bold red")
        allowed = "same bits" if check.expected == 0 else f"{check.expected:.0e}"
        drawn.add_row(mark, Text(check.name, style=style), Text(f"{check.measured:.1e}", style=style), allowed)
    missed = sum(not check.passed for check in checks)
    if missed:
        return Group(drawn, Text(f"{missed} of {len(checks)} checks FAILED", style="bold red"))
    return Group(drawn, Text(f"all {len(checks)} checks passed", style="green"))

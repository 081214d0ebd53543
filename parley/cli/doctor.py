"""`parley doctor`: is this machine fit?"""

from __future__ import annotations

import typer

from parley.cli.options import Store
from parley.cli.screen import console


def doctor(store: Store = None) -> None:
    """Check Python, torch, packages and extras, memory, disk, the run store and data sets; exit 1 if one is broken."""
    from rich.text import Text

    from parley.core.text import printable
    from parley.report.installation import examine

    marks = {"ok": ("✓", "green"), "note": ("–", "yellow"), "broken": ("✗", "bold red")}
    broken = 0
    for finding in examine(store):
        broken += finding.state == "broken"
        line = Text.assemble(marks[finding.state], f" {finding.subject:17} ", printable(finding.text))
        console().print(line, soft_wrap=True)
    if broken:
        print(f"{broken} broken: see the line{'s' if broken > 1 else ''} with ✗.")
        raise typer.Exit(1)

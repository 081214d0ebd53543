"""`parley demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parley.cli.options import Store
from parley.cli.screen import console


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the page, the figure and the numbers.", metavar="FOLDER")
    ] = Path("parley-demo"),
    rounds: Annotated[
        int | None,
        typer.Option(help="Rounds for each method, at most; default: 60, fewer for slow methods.", metavar="N", min=1),
    ] = None,
    store: Store = None,
) -> None:
    """Who gains by joining, which settings, and ten methods side by side on fifty clients; about a minute."""
    from parley.demo.run import demo
    from parley.store.runs import RunStore

    with RunStore(store) as runs:
        demo(runs, out, console(), rounds=rounds)

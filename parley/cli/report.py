"""`parley report`: stored runs as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parley.cli.options import Runs, Store
from parley.cli.screen import without_collection, writing


def report(
    runs: Runs = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.", metavar="FILE")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="What the page is called.", metavar="TEXT")] = "",
    names: Annotated[bool, typer.Option("--names", help="Show the clients' names.")] = False,
    store: Store = None,
) -> None:
    """Write one HTML page about runs that needs no network: results, curves, clients, roll-call, settings.

    Runs that differ in their seeds alone are one line, one curve and one band.

    Examples:

    parley report

    parley report digits last --out page.html
    """
    with without_collection():
        from parley.report.page import write_report
        from parley.store.runs import RunStore

        with RunStore(store, create=False) as kept, writing(out):
            write_report(kept, runs or [], out, names=names, title=title)

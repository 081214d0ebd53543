"""`parley watch`: follow what another process trains."""

from __future__ import annotations

from typing import Annotated

import typer

from parley.cli.examples import run_names
from parley.cli.options import Store
from parley.cli.screen import console


def watch(
    run: Annotated[
        str | None,
        typer.Argument(
            help="A run's id, the beginning of one, or 'last'; default: all that are running.",
            metavar="[RUN]",
            autocompletion=run_names,
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Stop watching after so long, 0 after one look; default: when the runs end.", metavar="S"),
    ] = None,
    store: Store = None,
) -> None:
    """Follow running runs from the store until they end.

    What is shown is as new as the run's last checkpoint (store.checkpoint, 5 seconds by default).

    Examples:

    parley watch

    parley watch last --seconds 60
    """
    from parley.report.watch import Watch
    from parley.store.runs import RunStore

    with RunStore(store, create=False) as kept:
        seen = Watch(kept, console(), run).follow(seconds)
        if not seen:
            newest = kept.info("last")
            print(f"nothing is running; the newest run is {newest.id} ({newest.status}).")

"""`parley compare`: runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from parley.cli.options import Store
from parley.cli.screen import console, save_figure, writing


def compare(
    runs: Annotated[list[str], typer.Argument(help="Runs: ids, beginnings of ids, or 'last'.", metavar="RUN...")],
    target: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Value to reach; default: 95 % of the best final accuracy.", metavar="X"),
    ] = None,
    metric: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="What to compare by; default: accuracy.", metavar="NAME"),
    ] = None,
    figure: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Also draw the comparison (.png, .svg or .pdf).", metavar="FILE"),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Also write the numbers (.csv or .json).", metavar="FILE"),
    ] = None,
    store: Store = None,
) -> None:
    """Compare runs: accuracy, and the rounds, megabytes and seconds to a target."""
    from parley import report
    from parley.store.runs import RunStore

    with RunStore(store, create=False) as kept:
        comparison = report.Comparison.stored(kept, runs, metric=metric, target=target)
    console().print(report.table(comparison))
    if out is not None:
        with writing(out):
            (report.to_json if out.suffix == ".json" else report.to_csv)(comparison, out)
    if figure is not None:
        save_figure(report.figure(comparison), figure)

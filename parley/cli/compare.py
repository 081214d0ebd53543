"""`parley compare`: runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from warnings import warn

import typer

from parley.cli.examples import one_of, study_and_run_names
from parley.cli.options import Runs, Store
from parley.cli.screen import console, save_figure, without_collection, writing
from parley.core.errors import ParleyWarning


def compare(
    runs: Runs = None,
    target: Annotated[
        float | None, typer.Option(help="Value to reach; default: 95 % of the best final accuracy.", metavar="X")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="What to compare by; default: accuracy.", metavar="NAME")] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Test every other against this one; default: all pairs.",
            metavar="RUN",
            autocompletion=study_and_run_names,
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw the comparison (.png, .svg or .pdf).", metavar="FILE")
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            help="Also write the numbers: csv, parquet, latex or json; to comparison.csv and the like, or where --out "
            "says.",
            metavar="FORMAT",
            autocompletion=one_of("csv", "parquet", "latex", "json"),
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file of numbers; its ending (.csv, .parquet, .tex, .json) is a format, too.", metavar="FILE"
        ),
    ] = None,
    store: Store = None,
) -> None:
    """Compare runs: accuracy, and the rounds, megabytes and seconds to a target.

    Runs that differ in their seeds alone are one line, with means, 95% intervals and paired tests over equal seeds.

    Examples:

    parley compare --target 0.8 --figure comparison.png

    parley compare --against last --export latex
    """
    with without_collection():
        from parley import report
        from parley.report.comparison_export import destination, write
        from parley.report.same_data import loss_words
        from parley.store.runs import RunStore

        file = destination(out, export)
        with RunStore(store, create=False) as kept:
            comparison = report.Comparison.stored(kept, runs or [], metric=metric, target=target, against=against)
        if different := loss_words(comparison.groups, comparison.metric):
            warn(different, ParleyWarning, stacklevel=2)
        console().print(report.table(comparison))
        if (tests := report.pairs_table(comparison)) is not None:
            console().print(tests)
        if file is not None:
            with writing(file):
                write(comparison, file)
        if figure is not None:
            save_figure(report.figure(comparison), figure)

"""`parley compare`: runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from parley.cli.options import Store
from parley.cli.screen import console, save_figure, without_collection, writing


def compare(
    runs: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            help="Runs: ids, beginnings of ids, names of studies, or 'last'; default: all of the store.",
            metavar="[RUN]...",
        ),
    ] = None,
    target: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Value to reach; default: 95 % of the best final accuracy.", metavar="X"),
    ] = None,
    metric: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="What to compare by; default: accuracy.", metavar="NAME"),
    ] = None,
    against: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Test every other against this one; default: all pairs.", metavar="RUN"),
    ] = None,
    figure: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Also draw the comparison (.png, .svg or .pdf).", metavar="FILE"),
    ] = None,
    export: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            help="Also write the numbers: csv, parquet, latex or json; to comparison.csv and the like, or where --out "
            "says.",
            metavar="FORMAT",
        ),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The file of numbers; its ending (.csv, .parquet, .tex, .json) is a format, too.",
                     metavar="FILE"),
    ] = None,
    store: Store = None,
) -> None:  # fmt: skip
    """Compare runs: accuracy, and the rounds, megabytes and seconds to a target.

    Runs that differ in their seeds alone are one line, with means, 95% intervals and paired tests over equal seeds.

    Examples:

    parley compare digits fedprox --target 0.8

    parley compare --against digits --export latex
    """
    with without_collection():
        from parley import report
        from parley.report.comparison_export import suffix_of, write
        from parley.store.runs import RunStore

        suffix = None if export is None else suffix_of(export)
        if out is None and suffix is not None:
            out = Path(f"comparison{suffix}")
        elif out is not None and suffix is not None:
            out = out if out.suffix == suffix else out.with_name(out.name + suffix)
        with RunStore(store, create=False) as kept:
            comparison = report.Comparison.stored(kept, runs or [], metric=metric, target=target, against=against)
        console().print(report.table(comparison))
        if (tests := report.pairs_table(comparison)) is not None:
            console().print(tests)
        if out is not None:
            with writing(out):
                write(comparison, out)
        if figure is not None:
            save_figure(report.figure(comparison), figure)

"""`parley demo` and `parley reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from parley.cli.examples import one_of, study_names
from parley.cli.options import Store
from parley.cli.screen import console


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the numbers.", metavar="FOLDER")] = Path(
        "parley-demo"
    ),
    rounds: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="Rounds for each method; default: 100.", metavar="N", min=1),
    ] = None,
    store: Store = None,
) -> None:
    """Compare six methods on handwritten digits that clients share unequally; less than a minute."""
    from parley.store.runs import RunStore
    from parley.studies.demo import demo

    with RunStore(store) as runs:
        demo(runs, out, console(), rounds=rounds)


def reproduce(
    study: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            help="A study (001/table1), a paper (001) or all; without it, they are listed.", autocompletion=study_names
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (seconds), cpu (minutes) or paper (the paper's sizes).",
            metavar="NAME",
            autocompletion=one_of("smoke", "cpu", "paper"),
        ),
    ] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for figures and numbers.", metavar="FOLDER")] = Path("reproduced"),
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="Processes that train at a time; default: one per core.", metavar="N", min=1),
    ] = None,
) -> None:
    """Reproduce a paper's figure or table and print its checks; exit 1 if one fails."""
    from rich.console import Console

    from parley.studies import matching, run_study
    from parley.studies.printed import catalogue, checks_table

    if study is None:
        console().print(catalogue())
        return
    passed = True
    for name in matching(study):
        result = run_study(name, scale, out, Console(stderr=True), workers)
        console().print(checks_table(result))
        passed = passed and result.passed
    if not passed:
        raise typer.Exit(1)

"""`parley new`: begin something from a template that works as written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Begin a method of your own from a skeleton that works.", no_args_is_help=True)


@app.command("algorithm")
def algorithm(
    name: Annotated[str, typer.Argument(help="What it is called, such as my-method.", metavar="NAME")],
    folder: Annotated[Path, typer.Option(help="Where to write; default: here.", metavar="FOLDER")] = Path(),
) -> None:
    """Write a method, a study that trains it and a test that passes as written."""
    from parley.study.skeleton import new_algorithm

    method, study, test = new_algorithm(name, folder)
    print(f"{method}\n{study}\n{test}\n")
    print(f"Next:\n  parley run {study}\n  python -m pytest {test}")

"""`parley list`: what can be chosen in a study, with its settings."""

from __future__ import annotations

from typing import Annotated

import typer

from parley.cli.examples import kinds, listed_names
from parley.cli.index import Details, Index, details, index
from parley.cli.screen import console, print_table
from parley.core.errors import InputError, nearest
from parley.core.plugins import is_file_name


def show(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="algorithms, models, partitioners, data-sets, server-optimizers, channels, schedules, losses, "
            "runtimes, kernels, feature-maps, listeners or studies.",
            metavar="[KIND]",
            autocompletion=kinds,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(help="One of them, to see its settings.", metavar="[NAME]", autocompletion=listed_names),
    ] = None,
) -> None:
    """List what a study can choose from, or the settings of one choice."""
    from rich.text import Text

    listed = index()
    if kind is None:
        for each, things in listed.items():
            console().print(Text.assemble((each, "bold"), f": {', '.join(things)}"), soft_wrap=True)
        for each, name, reason in _broken(listed):
            console().print(Text(f"{name} ({each}) is {reason}", style="yellow"), soft_wrap=True)
        return
    chosen = kind.lower().replace(" ", "-").replace("_", "-")
    chosen = "data-sets" if chosen in ("data", "datasets") else chosen
    if chosen not in listed:
        raise InputError(f"there is no list of '{kind}': {nearest(chosen, listed)}")
    if name is None:
        print_table([chosen, ""], list(listed[chosen].items()))
    elif name in listed[chosen] or is_file_name(name):
        _print(name, details(chosen, name))
    else:
        raise InputError(f"there is no '{name}' among the {chosen}: {nearest(name, listed[chosen])}")


def _broken(listed: Index) -> list[tuple[str, str, str]]:
    return [
        (kind, name, about)
        for kind, things in listed.items()
        for name, about in things.items()
        if about.startswith("broken: ")
    ]


def _print(name: str, shown: Details) -> None:
    """The thing's description and its settings with type, default and explanation."""
    console().print(f"[bold]{name}[/bold]")
    for line in (shown["about"], *shown["notes"]):
        console().print(line, markup=False)
    if shown["settings"]:
        print_table(["setting", "type", "default", ""], shown["settings"])

"""`parley list`: what can be chosen in a study, with its settings."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Annotated, Any, Optional

import typer

from parley.cli.examples import kinds, listed_names
from parley.cli.index import Index, index, registry
from parley.cli.screen import console, plain_value, print_table
from parley.core.errors import InputError, nearest
from parley.core.plugins import is_file_name


def show(
    kind: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            help="algorithms, models, partitioners, data-sets, server-optimizers, channels, schedules, losses, "
            "runtimes, kernels, feature-maps, listeners or studies.",
            metavar="[KIND]",
            autocompletion=kinds,
        ),
    ] = None,
    name: Annotated[
        Optional[str],  # noqa: UP045
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
        _settings(name, registry(chosen)[name])
    else:
        raise InputError(f"there is no '{name}' among the {chosen}: {nearest(name, listed[chosen])}")


def _broken(listed: Index) -> list[tuple[str, str, str]]:
    return [
        (kind, name, about) for kind, things in listed.items() for name, about in things.items()
        if about.startswith("broken: ")
    ]  # fmt: skip


def _settings(name: str, thing: Any) -> None:
    """The thing's description and its settings with type, default and explanation."""
    import inspect

    from parley.core.fields import settings_of, type_text
    from parley.data import Loader
    from parley.study.data_section import loader_settings
    from parley.study.sections import plain

    about = thing.about if hasattr(thing, "about") else inspect.getdoc(thing) or ""
    console().print(f"[bold]{name}[/bold]")
    console().print(about, markup=False)
    settings = settings_of(thing) if is_dataclass(thing) and isinstance(thing, type) else []
    if isinstance(thing, type) and hasattr(thing, "exchanges") and not any(s.required for s in settings):
        from parley.algorithms.base.exchange import disclosed
        from parley.engine.secure.round import obstacle

        method = thing()
        if parts := disclosed(method.exchanges()):
            console().print(f"SENDS THE DATA with these defaults: the server can read {' and '.join(parts)}.")
        reason = obstacle(method)
        console().print(f"Secure sums: {'yes' if reason is None else f'no: {reason}'}", markup=False)
    if isinstance(thing, Loader):
        console().print(f"Source: {thing.source}\nLicense: {thing.license}")
        settings = loader_settings(name)
    if settings:
        print_table(
            ["setting", "type", "default", ""],
            [
                (s.name, type_text(s.hint), default, " ".join(s.doc.split()))
                for s in settings
                for default in ["required" if s.required else plain_value(plain(s.default))]
            ],
        )  # fmt: skip

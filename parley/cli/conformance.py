"""`parley conformance`: every method against its exact fixed point and special cases."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from parley.cli.examples import algorithm_names, names_of, one_of, runtime_names
from parley.cli.screen import console
from parley.core.errors import InputError


def conformance(
    algorithm: Annotated[
        str | None,
        typer.Argument(
            help="An algorithm, or a method of your own with a `promise`: file.py:Name or package.module:Name; "
            "default: all.",
            metavar="[ALGORITHM]",
            autocompletion=algorithm_names,
        ),
    ] = None,
    runtime: Annotated[
        list[str] | None,
        typer.Option(
            "--runtime",
            help="Check on this runtime (repeatable); default: inline and stacked.",
            autocompletion=runtime_names,
        ),
    ] = None,
    channel: Annotated[
        str | None,
        typer.Option(
            "--channel",
            help="Check what a channel promises instead: qsgd(4), or file.py:Name(0.1).",
            metavar="NAME",
            autocompletion=names_of("channels"),
        ),
    ] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Hold other libraries' own trainers against the fixed points instead.")
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            help="Only this library (repeatable): pfl, fluke, flower, flgo, fedlab, parley.",
            metavar="NAME",
            autocompletion=one_of("pfl", "fluke", "flower", "flgo", "fedlab", "parley"),
        ),
    ] = None,
    install: Annotated[
        bool, typer.Option(help="Install libraries that are missing, into environments of their own.")
    ] = True,
    write: Annotated[
        Path | None, typer.Option("--write", help="With --peers: write the rows to this JSON file too.", metavar="FILE")
    ] = None,
) -> None:
    """Compare methods with their exact fixed points on four quadratics; exit 1 if one misses.

    --peers shows what other libraries do; it judges nothing, and the exit code is 0.
    """
    from parley.algorithms import Algorithm
    from parley.conformance import (
        RUNTIMES,
        check_channel,
        check_rule,
        load_channel,
        load_method,
        planned,
        refusal,
        table,
    )
    from parley.display.progress import steps
    from parley.runtimes import runtimes

    if peers or peer:
        if runtime or channel is not None:
            raise InputError("other libraries run on their own; leave out --runtime and --channel.")
        for point in entry_points(group="parley.conformance", name="peers"):
            point.load()(algorithm, tuple(peer or ()), install, write)
        return
    if write is not None:
        raise InputError("--write goes with --peers.")
    chosen = tuple(runtime or RUNTIMES)
    for name in chosen:
        runtimes[name]  # refuses unknown ones
    if channel is not None:
        if algorithm is not None or runtime:
            raise InputError("a channel is checked by itself; leave out the algorithm and --runtime.")
        checks = check_channel(load_channel(channel), channel)
    else:
        method = load_method(algorithm) if algorithm is not None and ":" in algorithm else algorithm
        if not isinstance(method, str | Algorithm | None):
            checks = check_rule(method)
        else:
            plan = planned(method, chosen)
            checks = []
            with steps() as tell:
                for done, (case, name) in enumerate(plan, 1):
                    checks.append(case.check(name))
                    tell("checking", done, len(plan))
        if isinstance(method, Algorithm) and "stacked" in chosen and (why := refusal(method)):
            typer.echo(f"Not checked on 'stacked': {why}", err=True)
    console().print(table(checks))
    if not all(check.passed for check in checks):
        raise typer.Exit(1)

"""`parley conformance`: every method against its exact fixed point and special cases."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from parley.cli.examples import algorithm_names
from parley.cli.screen import console
from parley.core.errors import InputError


def conformance(
    algorithm: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            help="An algorithm, or an update rule of your own: package.module:name or file.py:name; default: all.",
            metavar="[ALGORITHM]",
            autocompletion=algorithm_names,
        ),
    ] = None,
    runtime: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--runtime", help="Check on this runtime (repeatable); default: inline and stacked."),
    ] = None,
    channel: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--channel", help="Check what a channel promises instead: qsgd(4), or file.py:Name(0.1).", metavar="NAME"
        ),
    ] = None,
) -> None:
    """Hold methods against their exact fixed points on four quadratics; exit 1 if one misses."""
    from rich.console import Console

    from parley.engine.progress import track
    from parley.runtimes import runtimes
    from parley.studies.conformance import RUNTIMES, check_channel, check_rule, load_channel, load_rule, planned, table

    chosen = tuple(runtime or RUNTIMES)
    for name in chosen:
        runtimes[name]  # refuses unknown ones
    if channel is not None:
        if algorithm is not None or runtime:
            raise InputError("a channel is checked by itself; leave out the algorithm and --runtime.")
        checks = check_channel(load_channel(channel), channel)
    elif algorithm is not None and ":" in algorithm:
        checks = check_rule(load_rule(algorithm))
    else:
        plan = planned(algorithm, chosen)
        checks = [case.check(name) for case, name in track(plan, "checking", Console(stderr=True))]
    console().print(table(checks))
    if not all(check.passed for check in checks):
        raise typer.Exit(1)

"""`parley conformance`: every method against its exact fixed point and special cases."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from parley.cli.examples import algorithm_names, names_of, one_of, runtime_names
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
        typer.Option(
            "--runtime",
            help="Check on this runtime (repeatable); default: inline and stacked.",
            autocompletion=runtime_names,
        ),
    ] = None,
    channel: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--channel",
            help="Check what a channel promises instead: qsgd(4), or file.py:Name(0.1).",
            metavar="NAME",
            autocompletion=names_of("channels"),
        ),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option("--peers", help="Hold other libraries' own trainers against the fixed points instead."),
    ] = False,
    peer: Annotated[
        Optional[list[str]],  # noqa: UP045
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
        Optional[Path],  # noqa: UP045
        typer.Option("--write", help="With --peers: write the rows to this JSON file too.", metavar="FILE"),
    ] = None,
) -> None:
    """Hold methods against their exact fixed points on four quadratics; exit 1 if one misses.

    With --peers nothing is judged of Parley: what other libraries do is shown, and the exit code is 0.
    """
    from rich.console import Console

    from parley.engine.progress import track
    from parley.runtimes import runtimes
    from parley.studies.conformance import RUNTIMES, check_channel, check_rule, load_channel, load_rule, planned, table

    if peers or peer:
        if runtime or channel is not None:
            raise InputError("other libraries run on their own; leave out --runtime and --channel.")
        _peers(algorithm, tuple(peer or ()), install, write)
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
    elif algorithm is not None and ":" in algorithm:
        checks = check_rule(load_rule(algorithm))
    else:
        plan = planned(algorithm, chosen)
        checks = [case.check(name) for case, name in track(plan, "checking", Console(stderr=True))]
    console().print(table(checks))
    if not all(check.passed for check in checks):
        raise typer.Exit(1)


def _peers(method: str | None, libraries: tuple[str, ...], may_install: bool, write: Path | None) -> None:
    """Other libraries, in environments made and kept as the benchmark makes them."""
    from rich.console import Console

    from parley.bench import environments
    from parley.engine.progress import track
    from parley.studies.conformance.peers import Library, fill, peers_table, planned_peers, record

    if write is not None and not write.parent.is_dir():
        raise InputError(f"there is no folder {write.parent} to write {write.name} into.")

    def python(library: Library) -> Path:
        if library.own:
            return Path(sys.executable)
        if may_install:
            return environments.install(library.name, say=lambda text: print(text, file=sys.stderr))
        found = environments.installed(library.name)
        if found is None:
            raise InputError(f"{library.name} is not installed; leave out --no-install.")
        return found

    plans = planned_peers(method, libraries)
    rows = [fill(plan, python) for plan in track(plans, "asking", Console(stderr=True))]
    console().print(peers_table(rows))
    if write is not None:
        write.write_text(json.dumps(record(rows), indent=1) + "\n", encoding="utf-8")

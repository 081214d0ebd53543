"""`parley run`: train what a study file says."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from parley.cli.options import Set, Store
from parley.cli.screen import megabytes, percent, print_table, seconds


class Interrupted(Exception):
    """Ctrl-C during a run; its text says how to go on."""


def run(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).", metavar="STUDY")],
    settings: Set = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest unfinished run of this study, or for more rounds.")
    ] = False,
    store: Store = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress; print only the run's id.")] = False,
    runtime: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Who executes the clients: inline, stacked, pool or auto.", metavar="NAME"),
    ] = None,
    rounds: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="Rounds to train, in place of the study's.", metavar="N"),
    ] = None,
) -> None:
    """Train what STUDY says and keep the run in the store."""
    from parley.store.runs import RunStore
    from parley.study.study import load_study
    from parley.study.train import train_study

    overrides = [*(settings or []), *([f"rounds={rounds}"] if rounds is not None else [])]
    overrides += [f"runtime.name={runtime}"] if runtime is not None else []
    loaded = load_study(study, overrides)
    loaded.federation()
    with RunStore(store) as runs:
        try:
            trained = train_study(loaded, store=runs, resume=resume, progress=not quiet)
        except KeyboardInterrupt:
            again = ["parley", "run", str(study), *[part for text in settings or [] for part in ("--set", text)]]
            again += ["--rounds", str(rounds)] if rounds is not None else []
            again += ["--store", str(store)] if store is not None else []
            raise Interrupted(f"interrupted; go on with: {shlex.join([*again, '--resume'])}") from None
    if quiet:
        print(trained.id)
    else:
        show_run(str(trained.id), trained.status, trained.summary())


def show_run(run: str, status: str, summary: dict[str, Any]) -> None:
    """A finished run in a few lines."""
    rows: list[tuple[str, object]] = [("run", run), ("status", status), ("rounds", summary.get("rounds"))]
    for name, value in summary.items():
        if name.endswith("accuracy"):
            rows.append((name, percent(value)))
        elif name.removeprefix("best ").startswith(("central/", "clients/")):
            rows.append((name, f"{value:.4g}"))
    rows.append(("MB up", megabytes(summary.get("up/bytes"))))
    rows.append(("MB down", megabytes(summary.get("down/bytes"))))
    rows.append(("seconds", seconds(summary.get("seconds"))))
    if summary.get("failures"):
        rows.append(("replies left out", summary["failures"]))
    for client, reason in summary.get("never contributed", {}).items():
        rows.append(("never contributed", f"client '{client}' {reason}"))
    print_table(["", ""], rows)

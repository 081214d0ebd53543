"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parley.cli.examples import run_names, study_and_run_names

Store = Annotated[
    Path | None,
    typer.Option(
        "--store", help="The run store; default $PARLEY_STORE, else parley-runs/runs.db here.", metavar="FILE"
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a setting: --set algorithm.lr=0.05 (repeatable).", metavar="SETTING=VALUE"),
]
StudyFile = Annotated[Path, typer.Argument(help="The study file (TOML).", metavar="STUDY")]
Runs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Runs: ids, beginnings of ids, names of studies, or 'last'; default: all but tuning trials.",
        metavar="[RUN]...",
        autocompletion=study_and_run_names,
    ),
]
RunId = Annotated[
    str, typer.Argument(help="A run's id, the beginning of one, or 'last'.", metavar="RUN", autocompletion=run_names)
]
Deployment = Annotated[
    Path | None,
    typer.Option(
        "--server-folder", "-f", help="Ask the nodes of this deployment, on the server's machine.", metavar="DIR"
    ),
]
Json = Annotated[Path | None, typer.Option("--json", help="Also write everything as JSON.", metavar="FILE")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Also write the table as CSV.", metavar="FILE")]

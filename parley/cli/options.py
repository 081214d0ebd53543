"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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

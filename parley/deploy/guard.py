"""Runs one of Flower's programs so that it ends with the process that started it, however that one ends."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

from parley.core.processes import end_with_parent
from parley.deploy.extra import program

MAIN = "from parley.deploy.guard import main; main()"


def guarded(name: str, *arguments: str) -> list[str]:
    """The command that runs a program of Flower's in this way."""
    return [sys.executable, "-c", MAIN, program(name), *arguments]


def main(arguments: Sequence[str] | None = None) -> None:
    end_with_parent()
    sys.argv = list(arguments or sys.argv[1:])
    runpy.run_path(sys.argv[0], run_name="__main__")

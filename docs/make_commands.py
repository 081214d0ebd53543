"""Writes docs/commands.md, one line per command, from the commands' own help.

python docs/make_commands.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import typer

from parley.cli.examples import EXAMPLES
from parley.cli.main import application

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from pages import rows  # noqa: E402

NEEDS = {
    "Begin": ("demo", "doctor", "new", "list"),
    "Decide": ("gain", "pareto", "advise", "attack", "data", "stats"),
    "Train and judge": ("run", "runs", "tune", "watch", "ui", "compare", "report", "export", "predict"),
    "Deploy": ("deploy", "node"),
    "Check": ("conformance", "reproduce", "bench"),
}
TOP = """\
# Commands

<!-- Made by docs/make_commands.py from the commands' help; do not edit. -->

`parley COMMAND --help` has every option. Exit codes: 0 done; 1 a check or a run failed; 2 bad input, in one sentence;
128 + the number of the signal that interrupted it.
"""


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """A command, or those of its group, each with its words."""
    if isinstance(command, click.Group):
        if command.invoke_without_command:
            yield path, command
        for name, inner in command.commands.items():
            yield from commands(inner, f"{path} {name}")
    else:
        yield path, command


def page() -> str:
    whole = typer.main.get_command(application())
    assert isinstance(whole, click.Group)
    needs = {**NEEDS, "More": tuple(sorted(set(whole.commands) - {name for names in NEEDS.values() for name in names}))}
    parts = [TOP]
    for need, names in needs.items():
        lines = [
            (f"`{EXAMPLES.get(path, f'parley {path}')}`", command.get_short_help_str(200).replace("\\", ""))
            for name in names
            for path, command in commands(whole.commands[name], name)
        ]
        if lines:
            parts.append(f"\n## {need}\n\n" + rows(("by example", "what it does"), lines))
    return "".join(parts)


if __name__ == "__main__":
    (DOCS / "commands.md").write_text(page(), encoding="utf-8")

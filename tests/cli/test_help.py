"""Help: every command has an example that its parser understands; shells complete names."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
import typer

from parley.cli.examples import EXAMPLES, algorithm_names, kinds, run_names
from parley.cli.main import app


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


WHOLE = typer.main.get_command(app)
COMMANDS = dict(commands(WHOLE))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_is_understood(name: str):
    assert name in EXAMPLES, f"add an example of 'parley {name}' to parley/cli/examples.py"
    words = shlex.split(EXAMPLES[name])
    assert words[: 1 + len(name.split())] == ["parley", *name.split()]
    COMMANDS[name].make_context("parley", words[1 + len(name.split()) :], parent=click.Context(WHOLE))
    assert COMMANDS[name].help
    assert EXAMPLES[name] in (COMMANDS[name].epilog or "")


def test_there_are_no_examples_of_commands_that_do_not_exist():
    assert set(EXAMPLES) == set(COMMANDS)


def test_a_shell_completes_names():
    asked = {"COMP_WORDS": "parley reproduce 001/fig1", "COMP_CWORD": "2", "_PARLEY_COMPLETE": "complete_bash"}
    code = "from parley.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["001/fig1", "001/fig10", "001/fig12", "001/fig13"]


def test_what_can_be_completed(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARLEY_STORE", str(tmp_path / "none.db"))
    assert algorithm_names("scaf") == ["scaffold"]
    assert kinds("alg") == ["algorithms"]
    assert run_names("") == []

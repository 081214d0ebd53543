"""Help: every command has an example that its parser understands; shells complete names."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_type_hints

import click
import pytest
import typer
from click.shell_completion import ShellComplete

from parley.cli.examples import EXAMPLES, algorithm_names, kinds, run_names
from parley.cli.main import application
from parley.store.runs import RunStore


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


WHOLE = typer.main.get_command(application())
COMMANDS = dict(commands(WHOLE))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_is_understood(name: str):
    assert name in EXAMPLES, f"add an example of 'parley {name}' to parley/cli/examples.py"
    words = shlex.split(EXAMPLES[name])
    assert words[: 1 + len(name.split())] == ["parley", *name.split()]
    COMMANDS[name].make_context("parley", words[1 + len(name.split()) :], parent=click.Context(WHOLE))
    assert COMMANDS[name].help
    assert not re.search(r"[^\n]\n[^\n]", COMMANDS[name].help or ""), "Rich breaks a line there, whatever the width"
    assert EXAMPLES[name] in (COMMANDS[name].epilog or "")


def groups(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Group]]:
    yield path.strip(), group
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from groups(command, f"{path}{name} ")


def written(callback: Callable[..., object] | None) -> list[str]:
    """The help texts as they are in the source: of a command, and of its options and arguments."""
    hints = [] if callback is None else get_type_hints(callback, include_extras=True).values()
    about = [note.help for hint in hints for note in getattr(hint, "__metadata__", ()) if getattr(note, "help", None)]
    return [inspect.getdoc(callback) or "", *about]


@pytest.mark.parametrize("name", [*COMMANDS, *(name for name, _ in groups(WHOLE))])  # type: ignore[arg-type]
def test_help_shows_all_that_is_written(parley, name: str, monkeypatch: pytest.MonkeyPatch):
    """What stands in brackets, too, such as [data]."""
    monkeypatch.setenv("COLUMNS", "250")
    code, out, _ = parley(*name.split(), "--help")
    assert code == 0
    shown = " ".join(out.replace("\u2502", " ").split())
    if name in COMMANDS:
        texts = [*written(COMMANDS[name].callback), EXAMPLES[name]]
    else:
        group = dict(groups(WHOLE))[name]  # type: ignore[arg-type]
        texts = [command.help.partition("\n\n")[0] for command in group.commands.values() if command.help]
    for bracketed in (found for text in texts for found in re.findall(r"\[[^\]\s]+\]", text)):
        assert bracketed in shown, bracketed


def test_there_are_no_examples_of_commands_that_do_not_exist():
    assert set(EXAMPLES) == set(COMMANDS)


def test_a_shell_completes_names():
    asked = {"COMP_WORDS": "parley reproduce 001/fig1", "COMP_CWORD": "2", "_PARLEY_COMPLETE": "complete_bash"}
    code = "from parley.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == [
        "001/fig1",
        "001/fig10",
        "001/fig12",
        "001/fig12-cifar100",
        "001/fig13",
        "001/fig13-long",
    ]


def test_what_can_be_completed(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARLEY_STORE", str(tmp_path / "none.db"))
    assert algorithm_names("scaf") == ["scaffold"]
    assert kinds("alg") == ["algorithms"]
    assert run_names("") == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("list alg", "algorithms"),
        ("list algorithms fedpr", "fedprox"),
        ("list models ml", "mlp"),
        ("run study.toml --runtime st", "stacked"),
        ("tune study.toml --method fedpr", "fedprox"),
        ("tune study.toml --sampler gr", "grid"),
        ("conformance scaf", "scaffold"),
        ("conformance --runtime st", "stacked"),
        ("compare two-w", "two-words"),
        ("compare --against two-w", "two-words"),
        ("compare --export la", "latex"),
        ("report two-w", "two-words"),
        ("watch la", "last"),
        ("export la", "last"),
        ("runs show la", "last"),
        ("data fetch fash", "fashion-mnist"),
        ("reproduce --scale sm", "smoke"),
    ],
)
def test_names_are_completed_where_they_are_asked_for(
    line: str, offered: str, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PARLEY_STORE", str(tmp_path / "runs.db"))
    with RunStore(tmp_path / "runs.db") as store:
        store.create("two-words", {}, "")
    *before, incomplete = line.split()
    found = ShellComplete(WHOLE, {}, "parley", "_PARLEY_COMPLETE").get_completions(before, incomplete)
    assert offered in [item.value for item in found]
    assert all(item.value.startswith(incomplete) for item in found)


def test_names_are_completed_without_waiting_for_torch(tmp_path):
    asked = {"COMP_WORDS": "parley list algorithms scaf", "COMP_CWORD": "3", "_PARLEY_COMPLETE": "complete_bash"}
    code = "import sys; from parley.cli.main import main\ntry: main()\nexcept SystemExit: print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["scaffold", "False"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tuen"], "No such command 'tuen'. Did you mean 'tune'? See 'parley --help'."),
        (["runs", "shwo"], "No such command 'shwo'. Did you mean 'show'? See 'parley runs --help'."),
        (["watch", "--secnds"], "No such option '--secnds'. Did you mean '--seconds'? See 'parley watch --help'."),
        (["xyzzy"], "No such command 'xyzzy'. See 'parley --help'."),
    ],
)
def test_a_slip_gets_one_suggestion(parley, words: list[str], sentence: str):
    assert parley(*words) == (2, "", f"parley: {sentence}\n")


def test_examples_of_stored_runs_run_as_printed(parley, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    (tmp_path / "examples").symlink_to(Path(__file__).parents[2] / "examples")
    for study in ("digits", "own-folder"):  # the latter's clients are what is predicted
        assert parley("run", f"examples/{study}.toml", "--rounds", "2", "--quiet")[0] == 0
    names = ("compare", "report", "watch", "runs show", "runs export", "export", "predict")
    documented = [
        line.strip()
        for name in ("compare", "predict", "report")
        for line in (COMMANDS[name].help or "").splitlines()
        if line.strip().startswith("parley ") and not line.strip().startswith("parley run ")
    ]
    assert len(documented) == 5
    for example in [*(EXAMPLES[name] for name in names), *documented, EXAMPLES["runs delete"]]:
        code, _, err = parley(*shlex.split(example)[1:])
        assert code == 0, f"{example}: {err}"

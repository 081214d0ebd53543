"""docs/deploy.md: its set-up runs as printed, all its commands are understood, its study is one."""

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
import typer

from parley.cli.main import application, main
from parley.deploy.proposal import Proposal
from parley.deploy.submissions import submitted_study

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def test_every_command_is_understood() -> None:
    whole = typer.main.get_command(application())
    assert len(COMMANDS) > 20
    for line in COMMANDS:
        words = shlex.split(line)[1:]
        command: click.Command = whole
        context = click.Context(whole)
        while isinstance(command, click.Group) and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        command.make_context("parley", words, parent=context, resilient_parsing=False)


def test_the_set_up_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "north.csv").write_text(
        "age,dose,diagnosis\n" + "".join(f"{i},{i % 7},{'ab'[i % 2]}\n" for i in range(40))
    )
    done = 0
    for line in COMMANDS:
        if re.search(
            r"deploy (init|register|nodes|check -f|check --node|revoke|renew|status)|node (init|pending|log)", line
        ):
            with pytest.raises(SystemExit) as ended:
                main(shlex.split(line)[1:])
            allowed = (0, 1) if "check --node" in line else (0,)  # no server runs here
            assert ended.value.code in allowed, (line, capfd.readouterr().err)
            done += 1
    assert done == 16
    assert "SHA256:" in capfd.readouterr().out


def test_the_study_is_one() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    proposal = Proposal.of(submitted_study({"table": tomllib.loads(block), "base": "."}))
    assert (proposal.algorithm, proposal.rounds) == ("fedavg", 20)


FAULTS = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


def test_what_was_tried_is_tested() -> None:
    """Every test that the pages name is there, and starts processes where it says so."""
    for page in (FAULTS, PAGE):
        named = re.findall(r"(P )?`(test_\w+\.py)::(test_\w+)`", page)
        assert len(named) > 15
        assert len(re.findall(r"`test_\w+\.py", page)) == len(named)
        for processes, file, name in named:
            text = (ROOT / "tests" / "deploy" / file).read_text(encoding="utf-8")
            assert f"def {name}(" in text, f"{file}::{name}"
            assert bool(processes) == ("from .processes import" in text), f"{file}::{name}"
    for row in re.findall(r"^\| (?!tried|---)(.*) \|$", FAULTS, re.MULTILINE):
        assert "`test_" in row or "P the same test" in row, row
    liars = PAGE[PAGE.index("| a server that | gets |") : PAGE.index("What such a server can still do")]
    for row in re.findall(r"^\| (?!a server that|---)(.*) \|$", liars, re.MULTILINE):
        assert "`test_" in row, row


def test_every_test_with_processes_is_on_the_page_of_faults() -> None:
    for path in (ROOT / "tests" / "deploy").glob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE) if "from .processes import" in text else ():
            assert f"P `{path.name}::{name}`" in FAULTS, name

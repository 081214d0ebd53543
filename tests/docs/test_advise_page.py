"""docs/advise.md: its program and commands run as printed, and every option it names exists."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from parley.cli.advise import EXAMPLES
from parley.cli.main import application, main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "advise.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```\n(parley .*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
COMMANDS += [line.strip() for line in EXAMPLES.splitlines() if line.strip().startswith("parley ")]


@pytest.mark.long
@pytest.mark.parametrize(
    "command", sorted({line.partition("#")[0].strip() for line in COMMANDS if "reproduce" not in line})
)
def test_the_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "advised.toml").symlink_to(ROOT / "examples" / "pareto.toml")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command)[1:])
    assert ended.value.code == 0, capsys.readouterr().err


def test_the_program_runs(capsys) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "advise.md", "exec"), {})
    assert capsys.readouterr().out


def test_the_options_exist() -> None:
    command = get_command(application()).commands["advise"]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    named = set(re.findall(r"(?<![\w|-])--[a-z][a-z-]+", PAGE)) - {"--scale"}
    assert named <= known
    assert known - named <= {"study", "--help", "--set"}

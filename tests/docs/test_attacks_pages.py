"""The pages on attacks and on CP-NTK-FL: what they print runs, and every attack and option they name exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from parley.attack.run import DEFENCES
from parley.cli.main import application, main
from parley.study.channel_names import named_channel

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "attacks.md").read_text(encoding="utf-8")


def test_the_program_runs_and_says_what_the_page_says() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(block, "attacks.md", "exec"), names)
    findings = names["findings"]
    assert findings.row().values("ssim", "division") == pytest.approx([1.0, 1.0])  # type: ignore[attr-defined]
    for attack in findings.attacks:  # type: ignore[attr-defined]
        assert f"| `{attack}` |" in PAGE


def test_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "examples").symlink_to(DOCS.parent / "examples")
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"```\n(parley attack .*?)\n```", PAGE)
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(command)[1:], "--restarts", "1"])
    assert ended.value.code == 0
    assert "top-k(0.05)" in capsys.readouterr().out
    assert (tmp_path / "attack.png").stat().st_size > 10_000


def test_options_and_defences_exist() -> None:
    command = get_command(application()).commands["attack"]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    named = set(re.findall(r"(?<![\w|-])--[a-z][a-z-]+", PAGE)) - {"--help"}
    assert named <= known
    assert known - named <= {"study"}
    for text in DEFENCES:
        for channel in text.replace(") ", ")\0").split("\0"):
            named_channel(channel)

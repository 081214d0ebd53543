"""The page on channels: its programs run as they are printed, its commands too, and it names every channel."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from parley.channels import channels
from parley.cli.main import main
from parley.conformance import check_channel, load_channel
from parley.study.channel_names import named_channel

PAGE = (Path(__file__).parents[2] / "docs" / "channels.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_program():
    exec(compile(blocks("python")[0], "channels.md", "exec"), {"__name__": "page"})


def test_the_channel_of_ones_own_keeps_what_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file.py").write_text(blocks("python")[1])
    monkeypatch.chdir(tmp_path)
    try:
        assert all(check.passed for check in check_channel(load_channel("file.py:Halved(0.25)")))
    finally:
        for name in ("halved", "file.py:Halved"):
            channels._items.pop(name, None)


def test_study_lines():
    for text in re.findall(r'"([a-z0-9-]+(?:\([^"]*\))?)"', blocks("toml")[0]):
        named_channel(text)


def test_commands(capsys: pytest.CaptureFixture[str]):
    (command,) = re.findall(r"```\n(parley .*)\n```", PAGE)
    with pytest.raises(SystemExit) as end:
        main(shlex.split(command)[1:])
    assert not end.value.code
    assert "checks passed" in capsys.readouterr().out


def test_every_channel_is_named():
    for name in channels:
        if channels[name].__module__.startswith("parley.channels.") and "noise" not in name and "adaptive" not in name:
            assert f"`{name}" in PAGE

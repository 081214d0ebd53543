"""The page on channels: its programs run as they are printed, its commands too, and it names every channel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parley.channels import channels
from parley.cli.main import main
from parley.study.channel_names import named_channel

PAGE = (Path(__file__).parents[2] / "docs" / "channels.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(2))
def test_programs(number: int):
    channels._items.pop("halved", None)
    try:
        exec(compile(blocks("python")[number], "channels.md", "exec"), {"__name__": "page"})
    finally:
        channels._items.pop("halved", None)


def test_study_lines():
    for text in re.findall(r'"([a-z0-9-]+(?:\([^"]*\))?)"', blocks("toml")[0]):
        named_channel(text)


def test_commands(capsys: pytest.CaptureFixture[str]):
    (command,) = [line for block in blocks("") for line in block.strip().splitlines()]
    words = re.findall(r'"[^"]*"|\S+', command)[1:]
    assert main([word.strip('"') for word in words]) in (0, None)
    assert "checks passed" in capsys.readouterr().out


def test_every_channel_is_named():
    for name in channels:
        if channels[name].__module__.startswith("parley.channels.") and "noise" not in name and "adaptive" not in name:
            assert f"`{name}" in PAGE

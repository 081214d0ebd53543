"""The pages on studies, conformance and speed: what they print can be typed."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from parley.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"


def typed(command: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(command.split()[1:])
    return int(ended.value.code or 0)


def test_what_a_study_trained_is_listed_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "studies.md").read_text()
    monkeypatch.chdir(tmp_path)
    assert typed("parley reproduce 001/fig12 --scale smoke") == 0
    assert "5 not checked at this scale" in capsys.readouterr().out
    for command in ("parley runs --store reproduced/runs.db", "parley compare --store reproduced/runs.db RUN RUN"):
        assert f"`{command}`" in " ".join(page.split())
    assert typed("parley runs --store reproduced/runs.db") == 0
    ids = re.findall(r"gamma-[\w-]+", capsys.readouterr().out)
    assert len(ids) == 3
    assert typed(f"parley compare --store reproduced/runs.db {ids[0]} {ids[1]}") == 0
    assert "gamma = 0.1" in capsys.readouterr().out


def test_the_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("parley reproduce") == 0
    assert "gholami2025/table2" in capsys.readouterr().out


@pytest.mark.parametrize("number", range(4))
def test_the_methods_on_the_page_pass(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "conformance.md").read_text(), flags=re.S)
    assert len(blocks) == 4
    exec(compile(blocks[number], "conformance.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == (5, 4, 4, 3)[number]
    assert all(line.endswith("True") for line in lines)


@pytest.mark.parametrize(("maker", "page"), [("make_peers.py", "conformance.md"), ("make_bench.py", "bench.md")])
def test_what_was_measured_is_shown_as_it_was_written_down(maker: str, page: str) -> None:
    made = runpy.run_path(str(DOCS / maker))
    assert (DOCS / page).read_text(encoding="utf-8") == made["page"](), f"run docs/{maker}"

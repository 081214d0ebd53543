"""docs/compare.md and docs/tune.md: the commands and the code, as printed."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from parley.cli.compare import compare
from parley.cli.main import main
from parley.cli.report import report
from parley.cli.tune import tune
from parley.cli.watch import watch
from parley.core.errors import InputError
from parley.study.toml import study_from_dict

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str = "") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


def printed(command: Callable[..., None]) -> list[str]:
    """The examples in a command's help."""
    return re.findall(r"(?m)^ *(parley .*)$", inspect.getdoc(command) or "")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples in it; studies are cut short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    (tmp_path / "examples").mkdir()
    for name in ("digits", "tuning"):
        text = (ROOT / "examples" / f"{name}.toml").read_text(encoding="utf-8")
        (tmp_path / "examples" / f"{name}.toml").write_text(re.sub(r"(?m)^rounds = \d+", "rounds = 2", text, count=1))
    return tmp_path


def ended(line: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(shlex.split(line.partition("#")[0])[1:])
    assert isinstance(end.value.code, int)
    return end.value.code


def test_comparing(place, capsys):
    for line in blocks("compare.md")[0].splitlines():
        assert ended(line) == 0, line
    shown = capsys.readouterr().out
    assert "fedprox, seeds 0-5" in shown
    assert "digits − fedprox" in shown
    assert (place / "comparison.png").stat().st_size > 1000
    assert r"\toprule" in (place / "comparison.tex").read_text()
    for command in (compare, report, watch):  # and what their help prints
        lines = printed(command)
        assert len(lines) == 2
        assert [ended(line) for line in lines] == [0, 0]
    exec(blocks("compare.md", "python")[0], names := {})
    assert len(names["frame"]) == 12
    assert set(names["numbers"]["name"]) == {"digits", "fedprox"}


def test_tuning(place):
    for line in blocks("tune.md")[0].splitlines():
        assert ended(line) == 0, line
    assert (place / "tuned" / "trials.png").stat().st_size > 1000
    assert set(printed(tune)) < set(blocks("tune.md")[0].splitlines())
    exec(blocks("tune.md", "python")[0], names := {})
    assert names["run"].algorithm.lr == names["found"].best.settings["algorithm.lr"]
    with pytest.raises(InputError, match=r"\[tune\] has no setting 'trails'"):
        names["pl"].tune("examples/digits.toml", {"algorithm.lr": [0.1]}, trails=3)


def test_the_search_of_the_page_is_one(place):
    import tomllib

    table = tomllib.loads((place / "examples" / "digits.toml").read_text() + blocks("tune.md", "toml")[0])
    study_from_dict(table)

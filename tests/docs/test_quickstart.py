"""A newcomer's path: exactly the commands of docs/quickstart.md, in its order, with its one changed line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from parley.cli.main import main
from parley.store.runs import RunStore

PAGE = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
CHANGE = re.search(r"```toml\n(.*?)\n```", PAGE, re.DOTALL)[1]  # type: ignore[index]
PLACE = re.search(r"where `\[algorithm\]` says `(.*?)`", PAGE)[1]  # type: ignore[index]


def walked(capsys: pytest.CaptureFixture[str], shorter: tuple[str, ...] = ()) -> dict[str, str]:
    """What each command printed; `shorter` is added to those that train."""
    said = {}
    for line in COMMANDS:
        if line.startswith("parley run "):
            study = Path("parley-demo/study.toml")
            before = study.read_text()
            section = before.index("[algorithm]")
            assert before.index(PLACE, section) > section
            study.write_text(before[:section] + before[section:].replace(PLACE, CHANGE, 1))
            assert sum(a != b for a, b in zip(before.splitlines(), study.read_text().splitlines(), strict=True)) == 1
        more = shorter if line.startswith(("parley demo", "parley run ")) else ()
        with pytest.raises(SystemExit) as ended:
            main([*shlex.split(line)[1:], *more])
        said[line] = capsys.readouterr().out
        assert ended.value.code == 0, line
    return said


def check(said: dict[str, str]) -> None:
    assert list(said) == [
        "parley demo",
        "parley runs",
        "parley run parley-demo/study.toml",
        "parley compare fedavg- last --target 0.85",
        "parley report fedavg- last -o compared.html",
    ]
    assert "parley-demo/report.html" in said["parley demo"].replace("\n", "")
    assert said["parley runs"].count("finished") == 12
    with RunStore(create=False) as store:
        runs = store.runs()
    assert len(runs) == 13
    assert runs[-1].config["algorithm"]["name"] == "moon"
    assert {key: runs[0].config[key] for key in ("data", "model", "cohort")} == {
        key: runs[-1].config[key] for key in ("data", "model", "cohort")
    }
    compared = said["parley compare fedavg- last --target 0.85"]
    assert "fedavg" in compared
    assert "moon" in compared
    assert Path("parley-demo/report.html").stat().st_size > 100_000
    assert "moon" in Path("compared.html").read_text()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)


def test_the_path_in_a_few_rounds(capsys: pytest.CaptureFixture[str]):
    check(walked(capsys, ("--rounds", "4")))


@pytest.mark.slow
def test_the_path_as_printed(capsys: pytest.CaptureFixture[str]):
    said = walked(capsys)
    check(said)
    accuracy = [float(x) for x in re.findall(r"(\d\d\.\d+) ?%", said["parley compare fedavg- last --target 0.85"])]
    assert min(accuracy[:2]) > 80

"""docs/statistics.md: its commands and its Python run as printed, its section is one."""

import re
import shlex
import shutil
import tomllib
from pathlib import Path

import click
import pytest
import typer

from parley.cli.main import application, main
from parley.data.preprocessing import Preprocessing

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")
SIMULATED, SECURE, TABLE, DEPLOYED = [block.splitlines() for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)]


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    said = []
    for line in [*SIMULATED, *TABLE]:
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(line)[1:])
        out, err = capfd.readouterr()
        assert ended.value.code == 0, (line, err)
        said.append(" ".join(out.split()))
    assert "radius" in said[0]
    assert "A quantile's rank is off by at most" in said[0]
    assert "channel 0" in said[1]
    assert "examples/frozen.toml" in said[2]
    assert "finished" in said[3]
    assert (tmp_path / "digits.csv").exists()
    assert "typical" in said[4]
    assert len((tmp_path / "predicted.csv").read_text().splitlines()) == 7


def test_secure_sums(capfd) -> None:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(SECURE[0])[1:])
    assert ended.value.code == 0
    assert "no client's own" in " ".join(capfd.readouterr().out.split())


def test_the_commands_of_a_deployment_are_understood() -> None:
    whole = typer.main.get_command(application())
    assert len(DEPLOYED) == 3
    for line in DEPLOYED:
        words = shlex.split(line)[1:]
        command: click.Command = whole
        context = click.Context(whole)
        while isinstance(command, click.Group) and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        command.make_context("parley", words, parent=context, resilient_parsing=False)


def test_the_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/statistics.md", "exec"), names)
    assert names["run"].status == "finished"  # type: ignore[attr-defined]
    table = names["agreed"].table  # type: ignore[attr-defined]
    assert table["pain"].levels == ("atypical", "none", "typical")
    made = names["agreed"].apply(names["visits"]).info.columns  # type: ignore[attr-defined]
    assert made[:5] == ("age", "sex_female", "sex_male", "sex_other", "admitted_days")


def test_the_sections_are_some(tmp_path: Path) -> None:
    block, study = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    made = Preprocessing(**tomllib.loads(block)["preprocessing"])
    assert made.classes == ("ill", "well")
    (tmp_path / "study.toml").write_text(study + '[model]\nname = "linear"\n[algorithm]\nname = "fedavg"\n')
    shutil.copytree(ROOT / "examples" / "hospitals", tmp_path / "hospitals")
    with pytest.raises(SystemExit) as ended:
        main(["stats", f"{tmp_path}/study.toml", "--freeze", f"{tmp_path}/frozen.toml", "--fill", "median"])
    assert ended.value.code == 0
    table = tomllib.loads((tmp_path / "frozen.toml").read_text())["preprocessing"]["table"]
    assert table["pain"] | {"impute": "most-frequent"} == table["pain"]
    assert table["admitted"]["center"] == 18628  # days from 1970-01-01 to 2021-01-01

"""What docs/running.md says about warm starts in studies and on the command line is run as it is printed."""

import re
import shlex
from pathlib import Path

import pytest

import parley as pl
from parley.cli.main import main

RUNNING = (Path(__file__).parents[2] / "docs" / "running.md").read_text()
PAGE = RUNNING.partition("## Warm starts")[2].partition("\n## ")[0]
STUDY = """
rounds = 1
[data]
name = "digits"
clients = 4
public_fraction = 0.1
[model]
name = "mlp"
hidden = [4]
[algorithm]
name = "fedavg"
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_in_a_study_and_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    Path("study.toml").write_text(STUDY)
    assert ended("parley run study.toml -q") == 0
    first = capsys.readouterr().out.strip()
    assert ended(f"parley export {first} out") == 0
    Path("model.safetensors").write_bytes(Path("out/model.safetensors").read_bytes())
    lines = [line.partition("#")[0].strip() for line in blocks("")[0].splitlines()]
    for line in lines:
        assert ended(line.replace("fedavg-digits-k2fw", first)) == 0, line
    Path("study.toml").write_text(STUDY + blocks("toml")[0].replace("lr = 5.0", "lr = 5.0\nstudent_epochs = 1"))
    study = pl.load_study("study.toml")
    assert isinstance(study.start.algorithm, pl.FFGBDistill)
    run = pl.train(study, runtime="inline")
    assert run.records[0].metrics["up/bytes"].value > 0


def ended(command: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command)[1:])
    return int(ended.value.code or 0)

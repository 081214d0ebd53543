"""What the page on extending shows, and the README trains, is run as it is printed."""

import re
import shlex
from pathlib import Path

import pytest

import parley as pl
from parley.cli.main import main

ROOT = Path(__file__).parents[2]

MOON = """
from dataclasses import dataclass
import parley as pl
from torch import nn

def contrastive(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")

class Similarity(pl.Listener):
    def observe(self, number, observed):
        return {"clients seen": pl.Metric(len(observed))}

class Net(nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, x):
        return self.layers(x)

@dataclass(frozen=True)
class MOON(pl.FedAvg):
    mu: float = 1.0
"""


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_study_with_own_code_trains(tmp_path: Path):
    (tmp_path / "moon.py").write_text(MOON)
    (tmp_path / "study.toml").write_text(
        "rounds = 1\n" + blocks("extending.md", "toml")[0] + '[data]\nname = "iris"\nclients = 3\n'
    )
    run = pl.train(pl.load_study(tmp_path / "study.toml"))
    assert run.last("clients seen") == 3
    assert run.task.network.layers[1].out_features == 64


def commands() -> list[str]:
    """The lines of the README that train, with their remarks left out."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    return [line.partition("#")[0].strip() for line in lines if line.startswith("parley run ")]


@pytest.mark.slow
def test_the_readme_trains_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert len(commands()) >= 5
    for command in commands():
        again = "--resume" in command
        with pytest.raises(SystemExit) as ended:
            main([*shlex.split(command)[1:], *(["--rounds", "60"] if again else [])])  # there is nothing to go on with
        assert ended.value.code == 0, (command, capfd.readouterr().err)

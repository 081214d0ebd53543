"""What the page on extending shows is run as it is printed."""

import re
from pathlib import Path

import parley as pl

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

"""The public names have types that editors and type checkers understand."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import parley

ROOT = Path(__file__).parents[1]

SCRIPT = """
from typing import assert_type

import parley as pl

federation = pl.data.digits().split(pl.Dirichlet(0.1), clients=30, seed=0)
assert_type(federation, pl.Federation)
assert_type(pl.FedAvg(lr=0.1), pl.FedAvg)
run = pl.train(pl.FedAvg(lr=0.1, epochs=2), federation, model=pl.models.mlp(64), rounds=50, cohort=10)
assert_type(run, pl.Run)
assert_type(pl.train(pl.Study(pl.Scaffold(), federation, model=pl.models.mlp(64))), pl.Run)
run.plot("accuracy", "accuracy.png")


class Stop(pl.Listener):
    def round(self, record: pl.RoundRecord) -> None:
        if record.metrics["central/accuracy"].value > 0.9:
            raise pl.StopRun


"""
MISTAKES = [
    "pl.FedAvg(lrr=0.1)",
    'pl.FedAvg(lr="fast")',
    "pl.train(pl.FedAvg(), federation, model=pl.models.mlp(64), roundss=3)",
    'run.bestt("accuracy")',
    "pl.NoSuchMethod",
    'pl.Study(pl.FedAvg(), federation, model=pl.models.mlp(64), rounds="3")',
    'pl.Dirichlet(0.1)(3, "x")',
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + "\n".join(MISTAKES) + "\n")
    return path


def judged(output: str) -> set[int]:
    """The lines of the script in which a checker found errors."""
    found = (line.split(":") for line in output.splitlines() if "script.py:" in line and " error" in line)
    return {int(parts[1]) for parts in found}


def planted(script: Path) -> set[int]:
    lines = script.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line in MISTAKES}


def test_mypy_finds_every_planted_mistake_and_no_other(script: Path):
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert judged(done.stdout) == planted(script), done.stdout + done.stderr


def test_pyright_finds_every_planted_mistake_and_no_other(script: Path):
    folder = str(Path(sys.executable).parent)
    pyright = next((p for name in ("basedpyright", "pyright") if (p := shutil.which(name, path=folder))), None)
    if pyright is None:
        pytest.skip("neither pyright nor basedpyright is installed")
    (script.parent / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT}"], "typeCheckingMode": "standard"}}')
    command = [pyright, "--pythonpath", sys.executable, "-p", script.parent, "--level", "error"]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=False)
    assert judged(done.stdout) == planted(script), done.stdout + done.stderr


def test_an_editor_sees_every_public_name():
    assert set(parley._HOME) | {"__version__"} == set(parley.__all__) == set(dir(parley))
    assert (ROOT / "parley" / "py.typed").is_file()
    for name in ("FedAvg", "Work", "LocalOptimizer", "GradientTransform", "Metric", "Task", "Listener", "load_run"):
        assert name in parley._HOME, name

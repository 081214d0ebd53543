"""Every program and command that the documentation prints: run here, or by the test that names the page."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import numpy as np
import pytest
import torch
import typer

import parley as pl
from parley.cli.main import app
from parley.models import models

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
HERE = Path(__file__).name


def blocks(page: Path | str, language: str) -> list[str]:
    text = (ROOT / "docs" / page if isinstance(page, str) else page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    return tmp_path


def executed(page: str, names: dict[str, object] | None = None, start: int = 0) -> dict[str, object]:
    """The names a page's programs leave, run one after the other."""
    space = {"__name__": "page", **(names or {})}
    for block in blocks(page, "python")[start:]:
        exec(compile(block, page, "exec", dont_inherit=True), space)
    return space


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_some_test_runs_the_programs_of_every_page(page: Path):
    if blocks(page, "python"):
        tests = (ROOT / "tests").rglob("test_*.py")
        assert any(f"{page.name}" in test.read_text(encoding="utf-8") for test in tests), f"nobody runs {page.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_understood(page: Path):
    """Typer takes its words; that it does what is said is for the tests of the command."""
    whole = typer.main.get_command(app)
    for block in blocks(page, "(?:sh)?"):
        for line in block.splitlines():
            if line.startswith("parley "):
                words = shlex.split(line, comments=True)[1:]
                command: click.Command = whole
                while isinstance(command, click.Group) and words and words[0] in command.commands:
                    command = command.commands[words.pop(0)]
                if words or not isinstance(command, click.Group) or command.invoke_without_command:
                    command.make_context("parley", words, parent=click.Context(whole))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_piece_of_a_study_is_toml(page: Path):
    for block in blocks(page, "toml"):
        tomllib.loads(block)


def test_quickstart(place: Path, capsys: pytest.CaptureFixture[str]):
    executed("quickstart.md")
    first, second, sent = map(float, capsys.readouterr().out.split())
    assert min(first, second) > 0.3
    assert sent > 1e5


def test_readme(place: Path, capsys: pytest.CaptureFixture[str]):
    executed("../README.md")
    assert (place / "accuracy.png").stat().st_size > 1000


def test_bring_your_own(place: Path, capsys: pytest.CaptureFixture[str]):
    space = executed("bring-your-own.md")
    auc, brier = map(float, capsys.readouterr().out.split())
    assert auc > 0.9
    assert brier < 0.2
    code = blocks("bring-your-own.md", "python")[0]
    metric = code[code.index("def brier") : code.index("run = ")]
    network = (
        "from torch import nn\n\nclass Net(nn.Sequential):\n    def __init__(self, width: int = 4):\n"
        "        super().__init__(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2))\n\n"
    )
    (place / "mine.py").write_text(network + metric)
    (place / "clinics").mkdir()
    for name, (x, y) in space["clinics"].items():  # type: ignore[attr-defined]
        rows = [",".join([*map(str, row), "yes" if label else "no"]) for row, label in zip(x, y, strict=True)]
        (place / "clinics" / f"{name}.csv").write_text("\n".join(["a,b,c,d,e,f,ill", *rows]) + "\n")
    (place / "study.toml").write_text(blocks("bring-your-own.md", "toml")[0])
    run = pl.train(pl.load_study("study.toml", ["rounds=5"]))
    assert run.last("clients/auc") > 0.8
    assert run.last("clients/brier") < 0.3
    rng = np.random.default_rng(0)
    ages, doses, clinics = rng.normal(50, 9, 240), rng.random(240), rng.choice(["north", "south", "west"], 240)
    rows = [
        f"{age:.1f},{dose:.3f},{clinic},{'yes' if age + 20 * dose > 60 else 'no'}"
        for age, dose, clinic in zip(ages, doses, clinics, strict=True)
    ]
    (place / "patients.csv").write_text("\n".join(["age,dose,clinic,ill", *rows]) + "\n")
    (place / "patients.toml").write_text(blocks("bring-your-own.md", "toml")[1])
    assert pl.train(pl.load_study("patients.toml")).last("clients/accuracy") > 0.9


def test_theory(capsys: pytest.CaptureFixture[str]):
    executed("theory.md")
    gamma, steps = capsys.readouterr().out.split()
    assert float(gamma) >= 0
    assert int(steps) >= 1


def test_models(place: Path):
    try:
        space = executed("models.md")
    finally:
        models._items.pop("deep-linear", None)
    assert sum(p.numel() for p in space["module"].parameters()) == 79_510  # type: ignore[attr-defined]
    assert (place / "out" / "mlp" / "model.safetensors").is_file()


def test_running(place: Path):
    """The Study and the warm starts are run by the tests of the pages on extending and on warm starts."""
    federation = pl.data.digits().split(pl.Dirichlet(0.5), clients=20, seed=0)
    pl.train(pl.FedAvg(lr=0.1), federation, model=pl.models.linear(), rounds=1, store="parley-runs/runs.db")
    space = executed("running.md", {"pl": pl, "federation": federation, "x": torch.zeros(2, 1, 8, 8)}, start=2)
    assert (place / "failures.csv").is_file()
    assert "17" in space["run"].clients_with_memory()  # type: ignore[attr-defined]


def test_extending(capsys: pytest.CaptureFixture[str]):
    executed("extending.md")
    assert capsys.readouterr().out.startswith("1 {")


def test_studies_and_bench_compile():
    """A sketch of a study, and a race that takes minutes: what they import exists."""
    for page in ("studies.md", "bench.md"):
        block = blocks(page, "python")[0]
        compile(block, page, "exec")
        for line in block.splitlines():
            if line.startswith(("from ", "import ")):
                exec(line)

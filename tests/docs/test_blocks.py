"""Every program and command that the documentation prints: run here, or by the test that names the page."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np
import pytest
import torch
import typer

import parley as pl
from parley.cli.main import application
from parley.models import models

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
PROSE = sorted([*PAGES, *(ROOT / "docs" / "algorithms").glob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])
NO_MODULES = {"parley.partitioners", "parley.losses", "parley.listeners", "parley.run"}
"""Groups of entry points, and a tag at MLflow."""
SKETCHES = ("studies.md",)
"""Pages whose program is called a sketch."""


def blocks(page: Path | str, language: str) -> list[str]:
    text = (ROOT / "docs" / page if isinstance(page, str) else page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    return tmp_path


def executed(page: str) -> dict[str, object]:
    """The names a page's programs leave, run one after the other."""
    space: dict[str, object] = {"__name__": "page"}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec", dont_inherit=True), space)
    return space


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_some_test_runs_the_programs_of_every_page(page: Path):
    if blocks(page, "python"):
        tests = (ROOT / "tests").rglob("test_*.py")
        assert any(f"{page.name}" in test.read_text(encoding="utf-8") for test in tests), f"nobody runs {page.name}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in SKETCHES], ids=lambda page: page.name)
def test_programs_use_only_what_their_page_defines(page: Path):
    """So that no test can lend them a name that a reader does not have."""
    known = {*dir(builtins), "__name__"}
    for block in blocks(page, "python"):
        nodes = list(ast.walk(ast.parse(block)))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        known |= {name.id for name in names if not isinstance(name.ctx, ast.Load)}
        known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        known |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        imports = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
        known |= {(alias.asname or alias.name).split(".")[0] for alias in imports}
        assert {name.id for name in names} <= known, block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_understood(page: Path):
    """Typer takes its words; that it does what is said is for the tests of the command."""
    whole = typer.main.get_command(application())
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
    space = executed("running.md")
    assert (place / "failures.csv").is_file()
    assert "17" in space["run"].clients_with_memory()  # type: ignore[attr-defined]
    warm, again = (space[name].module().state_dict() for name in ("warm", "again"))  # type: ignore[attr-defined]
    for name, value in warm.items():
        torch.testing.assert_close(again[name], value)


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


def inline_code(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", text)


def resolved(dotted: str) -> bool:
    """Whether `pl.data.digits` or `parley.theory.heterogeneity` is something that exists."""
    first, *rest = dotted.split(".")
    value: object = pl if first == "pl" else importlib.import_module(first)
    module = "parley" if first == "pl" else first
    for name in rest:
        module = f"{module}.{name}"
        fields = getattr(value, "__dataclass_fields__", {})
        if not hasattr(value, name) and name not in fields and find_spec(module) is None:
            return False
        value = getattr(value, name, None) if hasattr(value, name) else importlib.import_module(module)
    return True


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_names_in_prose_exist(page: Path):
    for code in inline_code(page):
        for dotted in re.findall(r"(?<![\w./-])(?:pl|parley(?:_papers|_benchmarks)?)(?:\.[A-Za-z_]\w*)+", code):
            assert dotted in NO_MODULES or resolved(dotted), f"{page.name}: {code}"


def test_methods_called_in_prose_exist():
    """`gains.summary()`: whatever stands before the dot, somebody defines the method."""
    sources = [
        path for room in ("parley", "parley_papers", "parley_benchmarks") for path in (ROOT / room).rglob("*.py")
    ]
    defined = {
        node.name
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    for page in PROSE:
        for code in inline_code(page):
            for owner, name in re.findall(r"(?<![\w.])([a-z_]+)\.([a-z_]\w*)\(", code):
                assert name in defined or owner == "pl" or hasattr(torch.nn.Module, name), f"{page.name}: {code}"

"""The examples of docs/trees.md run as printed."""

import re
from pathlib import Path

import pytest
import torch

from parley.cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "trees.md"


def test_the_examples_run(capsys: pytest.CaptureFixture[str]):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert len(blocks) == 2
    assert isinstance(names["module"], torch.nn.Module)
    assert capsys.readouterr().out.count("x0") == 2


def test_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """As printed, exported and used."""
    assert "parley run examples/trees.toml" in PAGE.read_text(encoding="utf-8")
    store = str(tmp_path / "runs.db")
    monkeypatch.chdir(ROOT)

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as end:
            main([*arguments, "--store", store])
        assert end.value.code == 0
        return capsys.readouterr().out

    assert "auc" in run("run", "examples/trees.toml")
    run("export", "last", str(tmp_path / "out"))
    assert (tmp_path / "out" / "model.onnx").exists()
    assert "auc" in run("run", "examples/trees.toml", "--set", "algorithm.name=tree-bagging")

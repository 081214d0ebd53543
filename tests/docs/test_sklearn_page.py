"""The programs of docs/sklearn.md run as printed."""

import re
from pathlib import Path

import pytest
import sklearn

PAGE = (Path(__file__).parents[2] / "docs" / "sklearn.md").read_text(encoding="utf-8")


def test_the_programs_run(capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, object] = {}
    try:
        for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
            exec(compile(block, "sklearn.md", "exec", dont_inherit=True), space)
    finally:
        sklearn.set_config(enable_metadata_routing=False)
    score, shape, settings, search = capsys.readouterr().out.splitlines()
    assert float(score) > 0.95
    assert (shape, settings) == ("(3, 2)", "0.05 (20,)")
    assert search == "{'algorithm__lr': 0.1} 4"

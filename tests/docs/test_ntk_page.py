"""The examples of docs/ntk.md run as printed, and what it says of sizes is so."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "ntk.md").read_text()


def test_the_examples_run(capsys) -> None:
    names: dict[str, object] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(block, "ntk.md", "exec"), names)
    shown = capsys.readouterr().out
    assert "('inputs', 'labels')" in shown


def test_the_sizes_are_right() -> None:
    weights, factored = 784 * 100 + 100 + 1000 + 10, 784 + 100 + 10 * 100
    assert f"{factored:,} (7.5 kB)" in PAGE
    assert f"{10 * weights:,} (3.2 MB)" in PAGE
    assert round(20 * 20 * weights * 4 / 1e6) == 127

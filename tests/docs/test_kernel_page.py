"""The examples of docs/kernel.md run as printed."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "kernel.md"


def test_the_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert len(blocks) == 4
    assert len(names["found"]) == 3

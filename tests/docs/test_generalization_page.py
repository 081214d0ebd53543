"""The examples of docs/generalization.md run as printed and give the numbers beside them."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "generalization.md"


def test_the_examples_run_and_the_numbers_are_right() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    compared = 0
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        for line in block.splitlines():
            expression, _, comment = line.partition("  # ")
            printed = re.findall(r"\b\d+\.\d+", comment)
            if printed and "=" not in expression:
                values = eval(expression, names)
                assert list(values) == pytest.approx([float(number) for number in printed], abs=6e-5), line
                compared += 1
    assert (len(blocks), compared) == (2, 4)

"""The examples of docs/boosting.md run as printed."""

import re
import tomllib
from pathlib import Path

from parley.study.toml import study_from_dict

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "boosting.md").read_text(encoding="utf-8")


def test_the_example_runs(capsys) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[:1]
    exec(compile(block, "boosting.md", "exec"), {})
    assert 0.9 < float(capsys.readouterr().out) < 1


def test_the_study_file_is_the_example() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[:1]
    example = (DOCS.parent / "examples" / "boosting.toml").read_text(encoding="utf-8")
    assert tomllib.loads(block) == tomllib.loads(example)
    assert study_from_dict(tomllib.loads(block)).model is None

"""docs/privacy.md: its example runs as printed, its section is the example's, its table of certainty is right."""

import math
import re
import tomllib
from pathlib import Path

import pytest

from parley_papers.harness import matching

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    pytest.importorskip("dp_accounting")
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(block, "privacy.md", "exec"), names)
    assert names["run"].last("privacy/epsilon") == pytest.approx(7.997, abs=1e-3)  # type: ignore[attr-defined]
    assert names["run"].last("accuracy") > 0.85  # type: ignore[attr-defined]


def test_the_section_is_that_of_the_example() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    example = tomllib.loads((ROOT / "examples" / "private-digits.toml").read_text(encoding="utf-8"))
    assert tomllib.loads(block)["privacy"] == example["privacy"]
    assert "parley run examples/private-digits.toml" in PAGE  # trained by the tests of the command line


def test_how_sure_someone_can_be() -> None:
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+)% \|$", PAGE, re.MULTILINE)
    assert len(rows) == 6
    for epsilon, sure in rows:
        exact = 100 / (1 + math.exp(-float(epsilon)))
        assert float(sure) == pytest.approx(exact, abs=0.05 if float(epsilon) < 8 else 0.005)


def test_the_picture_and_the_study_exist() -> None:
    for picture in re.findall(r"\]\((figures/[^)]+)\)", PAGE):
        assert (ROOT / "docs" / picture).is_file()
    for name in re.findall(r"parley reproduce (\S+)", PAGE):
        assert matching(name)

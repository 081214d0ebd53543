"""The pages on algorithms and conformance say what the code does."""

import runpy
from pathlib import Path

import pytest

from parley.algorithms import algorithms
from parley.studies.conformance import check_rule

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_in_step_with_the_code():
    made = runpy.run_path(str(DOCS / "make_algorithms.py"))
    written = (DOCS / "algorithms.md").read_text(encoding="utf-8")
    assert written == made["page"](), "run python docs/make_algorithms.py"


@pytest.mark.parametrize("name", list(algorithms))
def test_every_algorithm_has_a_section(name):
    if algorithms[name].__module__.startswith("parley."):
        assert f"### `{name}`\n" in (DOCS / "algorithms.md").read_text(encoding="utf-8")


def test_the_rule_on_the_conformance_page_passes():
    text = (DOCS / "conformance.md").read_text(encoding="utf-8")
    code = text.partition("```python\n")[2].partition("```")[0]
    names: dict[str, object] = {}
    exec(code, names)  # the page's own example
    assert all(check.passed for check in check_rule(names["MyScaffold"]()))  # type: ignore[operator]

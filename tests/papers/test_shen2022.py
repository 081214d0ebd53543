"""Studies of paper 002: every statement that holds at all holds at smoke scale, and figures are drawn."""

import pytest

from parley_papers.catalogue import run_study


@pytest.mark.parametrize("name", ["table1", "thm42"])
def test_the_study_passes_at_smoke_scale(name: str) -> None:
    result = run_study(f"002/{name}", "smoke")
    assert [check.name for check in result.checks if check.passed is False] == []
    assert list(result.figures) == [name]

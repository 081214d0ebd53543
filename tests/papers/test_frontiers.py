"""Paper 001's exact figures: every check of every one holds, and the checks can fail."""

import numpy as np
import pytest

from parley.theory.frontier import Frontier, family_frontier
from parley_papers.catalogue import run_study
from parley_papers.charles2021.frontiers import off

EXACT_FIGURES = [f"001/fig{number}" for number in (1, 2, 3, 4, 5, 7, 8, 9, 10)]


@pytest.mark.parametrize("name", EXACT_FIGURES)
def test_every_check_holds(name: str):
    result = run_study(name, "smoke")
    assert [check for check in result.checks if not check.passed] == []
    assert result.figures
    assert result.seconds < 20


def test_a_point_off_the_frontier_is_seen():
    right = family_frontier(10.0, 1.0, 0.01, np.array([1.0, 5.0, 50.0]))
    moved = Frontier(**(vars(right) | {"rho": right.rho + np.array([0.0, 1e-6, 0.0])}))
    assert off(right) < 1e-14
    assert off(moved) == pytest.approx(1e-6)

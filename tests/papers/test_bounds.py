"""The study of what paper 001's printed bounds get wrong."""

import pytest

from parley.theory.surrogate import All, distances
from parley_papers.catalogue import run_study
from parley_papers.charles2021.bounds import two_clients


def test_every_check_holds():
    result = run_study("001/bounds", "smoke")
    assert [check for check in result.checks if not check.passed] == []
    assert result.figures


def test_clients_that_share_their_axes_do_not_drift():
    found = distances(two_clients(0.0), 4e-4, All(2))
    assert found.actual == pytest.approx(0.0, abs=1e-12)
    assert found.printed_in_paper > 0.4

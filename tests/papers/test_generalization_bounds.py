"""Study 004/bounds passes at smoke scale, and its problems are what they say they are."""

import numpy as np
import pytest

from parley_papers.catalogue import run_study
from parley_papers.gholami2025 import bounds


def test_the_study_passes_at_smoke_scale() -> None:
    result = run_study("004/bounds", "smoke")
    assert [check.name for check in result.checks if not check.passed] == []
    assert list(result.figures) == ["bounds"]
    assert all(row["gap"]["error"] > 0 for row in result.data["ridge regression, apart"])


@pytest.mark.parametrize("K", [2, 4, 8])
def test_clients_are_as_far_from_their_centre_as_asked(K: int) -> None:
    means = bounds.mean_estimation(K, 3.0).m
    np.testing.assert_allclose(means.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(means, axis=1), 3.0)
    truths = bounds.ridge_regression(K, 3.0).truth
    np.testing.assert_allclose(np.linalg.norm(truths - 1, axis=1), 3.0)


def test_a_gap_above_the_bound_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.theory.generalization.trials.coefficients", lambda L, mu, exact: (0.1, 0.1))
    result = run_study("004/bounds", "smoke")
    assert "bound above the measured gap" in " ".join(check.name for check in result.checks if not check.passed)

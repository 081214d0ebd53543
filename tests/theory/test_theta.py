from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory.theta import All, Explicit, Last, as_theta, log_mean_all

SHARES = st.floats(0.0, 1.0, exclude_max=True)


@settings(deadline=None, max_examples=60)
@given(s=SHARES, K=st.integers(1, 60))
def test_all_and_last_equal_their_explicit_sums(s: float, K: int) -> None:
    powers = (1 - s) ** np.arange(K)
    assert np.exp(All(K).log_mean(s)) * K == pytest.approx(powers.sum(), rel=1e-12)
    assert np.exp(Last(K).log_mean(s)) == pytest.approx(powers[-1], rel=1e-11, abs=1e-300)
    assert Explicit((1.0,) * K).log_mean(s) == pytest.approx(All(K).log_mean(s), rel=1e-10, abs=1e-15)


@settings(deadline=None, max_examples=60)
@given(s=SHARES, coefficients=st.lists(st.floats(0, 10), min_size=1, max_size=20).filter(lambda c: sum(c) > 1e-3))
def test_explicit_sequences_equal_their_sum(s: float, coefficients: list[float]) -> None:
    theta = as_theta(coefficients)
    direct = sum(value * (1 - s) ** k for k, value in enumerate(coefficients))
    assert theta.weight * np.exp(theta.log_mean(s)) == pytest.approx(direct, rel=1e-10, abs=1e-290)


@pytest.mark.parametrize("K", [2, 10, 10**6, 10**9])
@pytest.mark.parametrize("s", [1e-300, 1e-21, 1e-12, 1e-7, 9e-4, 2e-3, 0.19, 0.9])
def test_all_has_full_relative_precision_for_huge_k_and_tiny_steps(s: float, K: int) -> None:
    """Against exact rationals and expansions."""
    if K * s < 1e-3:  # log(q/K) = -(K-1)s/2 + (K-1)(K-5)s^2/24 + O(K^3 s^3)
        exact = -Fraction(K - 1) * Fraction(s) / 2 + Fraction((K - 1) * (K - 5)) * Fraction(s) ** 2 / 24
        assert float(log_mean_all(s, K)) == pytest.approx(float(exact), rel=1e-6)
    if K * s < 1e-7:
        assert float(log_mean_all(s, K)) == pytest.approx(-(K - 1) * s / 2, rel=2e-7)
    if K <= 10:
        q = sum((1 - Fraction(s)) ** k for k in range(K)) / K
        # log1p of the exact rational excess
        assert float(log_mean_all(s, K)) == pytest.approx(float(np.log1p(float(q - 1))), rel=1e-13)
    if K * s > 40:
        assert float(log_mean_all(s, K)) == pytest.approx(-np.log(K * s), rel=1e-13)


def test_one_step_is_no_distortion_exactly() -> None:
    s = np.linspace(0, 0.999, 50)
    assert (All(1).log_mean(s) == 0).all()
    assert (Last(1).log_mean(s) == 0).all()


@pytest.mark.parametrize("K", [0, -3, 2.5, True])
def test_steps_must_be_whole_and_positive(K: int) -> None:
    with pytest.raises(InputError, match="K must be a whole number"):
        All(K)
    with pytest.raises(InputError, match="K must be a whole number"):
        Last(K)


@pytest.mark.parametrize(
    ("coefficients", "words"),
    [([], "non-empty"), ([1.0, -0.5], "theta_2 = -0.5"), ([0.0, 0.0], "above zero"), ([float("nan")], "finite")],
)
def test_bad_sequences_name_their_condition(coefficients: list[float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        as_theta(coefficients)


def test_trailing_zeros_cost_no_steps() -> None:
    assert as_theta([0.0, 2.0, 0.0]).steps == 2
    assert as_theta(np.array([0.0, 2.0])).weight == 2.0

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory.theta import All, Explicit, Last, as_theta

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


@settings(deadline=None, max_examples=100)
@given(exponent=st.floats(-300, -1e-9), power=st.floats(0, 9))
@example(exponent=-12.0, power=9.0)
@example(exponent=-9.0, power=9.0)
@example(exponent=-1e-9, power=9.0)
def test_full_relative_precision_for_huge_k_and_tiny_steps(exponent: float, power: float) -> None:
    """K up to 1e9 and s from 1e-300 to 1 - 2e-9, against decimal arithmetic with 700 digits."""
    s, K = 10.0**exponent, round(10.0**power)
    with localcontext() as context:
        context.prec = 700
        left = 1 - Decimal(s)
        mean = (1 - left**K) / (K * Decimal(s))
        exact = float(mean.ln()), float((K - 1) * left.ln())
    assert float(All(K).log_mean(s)) == pytest.approx(exact[0], rel=2e-13, abs=1e-300)
    assert float(Last(K).log_mean(s)) == pytest.approx(exact[1], rel=2e-13, abs=1e-300)


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

"""Sums without rounding: over any partition, for all of float64, and without a trace of what they are made of."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.statistics.exact_sums import DIGITS, carried, exact_sums, exact_value, root, rounded

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=64)
LISTS = st.lists(FINITE, min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(values=LISTS, power=st.sampled_from([1, 2]), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_the_sum_is_exact_over_any_partition(values: list[float], power: int, cuts: list[int]):
    x = np.array([values])
    parts = np.split(x, sorted(min(cut, len(values)) for cut in cuts), axis=1)
    digits = sum(exact_sums(part, power) for part in parts)
    assert exact_value(digits[0], power) == sum(Fraction(value) ** power for value in values)
    assert np.array_equal(carried(digits), exact_sums(x, power))


@settings(max_examples=60, deadline=None)
@given(values=LISTS)
def test_rounded_it_is_what_fsum_gives(values: list[float]):
    try:
        expected = math.fsum(values)
    except OverflowError:
        return
    found = rounded(exact_value(exact_sums(np.array([values]), 1)[0], 1))
    assert found == expected or math.isinf(found)


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.integers(-(2**40), 2**40), min_size=2, max_size=20), power=st.sampled_from([1, 2]))
def test_the_digits_say_the_sum_and_nothing_else(values: list[int], power: int):
    """Another client with the same sum of the same power sends the same bytes."""
    x = np.array([values], np.float64)
    digits = exact_sums(x, power)
    assert (digits[:, :-1] >= 0).all()
    assert (digits[:, :-1] < 2**32).all()
    total = sum(value**power for value in values)
    whole = [float(total)] if power == 1 and abs(total) < 2**53 else []
    for other in (np.array([whole]), np.array([sorted(values)], np.float64), -x if power == 2 else x[:, ::-1]):
        if other.size:
            assert np.array_equal(exact_sums(other, power), digits)


def test_many_large_numbers_do_not_overflow():
    x = np.full((1, 2**19 + 3), -(1 - 2.0**-53))
    assert exact_value(exact_sums(x, 1)[0], 1) == x.size * Fraction(float(x[0, 0]))
    assert exact_value(exact_sums(x, 2)[0], 2) == x.size * Fraction(float(x[0, 0])) ** 2
    largest = np.full((1, 4), np.finfo(np.float64).max)
    assert exact_value(exact_sums(largest, 2)[0] * 2**30, 2) == 2**32 * Fraction(float(largest[0, 0])) ** 2


def test_missing_values_and_no_values():
    x = np.array([[np.nan, 1.5, np.nan, -0.25], [np.nan] * 4])
    assert [exact_value(row, 1) for row in exact_sums(x, 1)] == [Fraction(5, 4), 0]
    assert exact_sums(np.zeros((3, 0)), 2).shape == (3, DIGITS[2])


@pytest.mark.parametrize("value", [0, 2, Fraction(1, 3), 10**400, Fraction(1, 10**400), 4, Fraction(9, 16)])
def test_roots(value):
    found = Fraction(root(Fraction(value)))
    assert abs(found * found - value) <= Fraction(value) * Fraction(1, 2**51)
    assert root(Fraction(10**700)) == math.inf

"""Sums of float64 numbers, and of their squares, without any rounding.

A finite number is a whole multiple of 2^-1126, its square one of 2^-2252. Their sums are kept as whole numbers in base
2^32, one int64 a digit, which may be added over clients in any order and grouping: up to 2^31 of them, whatever their
numbers. What a client sends has its carries done, so it shows the sum and nothing of what it was made of.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from parley.algorithms.trees.binning import Counts, Floats

_BITS = 32
_MASK = (1 << _BITS) - 1
_HALF = 27
"""A mantissa of 53 bits is split in two, so that products and shifts fit 64 bits."""
_UNIT = 1074 + 52
"""Of the smallest numbers the mantissa begins with zeros, 52 at most."""
_CHUNK = 2**18
DIGITS = {power: -(-power * (_UNIT + 1024) // _BITS) + 2 for power in (1, 2)}
"""Digits of a sum of numbers (1) and of squares (2); the last has the sign."""


def exact_sums(values: Floats, power: int) -> Counts:
    """The sum of each row's numbers or squares as digits, [rows, DIGITS[power]]; NaN is left out."""
    total = np.zeros((len(values), DIGITS[power]), np.int64)
    for begin in range(0, values.shape[1], _CHUNK):
        part = values[:, begin : begin + _CHUNK]
        mantissa, exponent = np.frexp(np.where(np.isnan(part), 0.0, part))
        whole, shift = (mantissa * 2.0**53).astype(np.int64), exponent.astype(np.int64) - 53 + _UNIT
        if power == 1:
            _add(total, whole, shift)
        else:
            high, low = np.abs(whole) >> _HALF, np.abs(whole) & ((1 << _HALF) - 1)
            for product, bit in ((high * high, 2 * _HALF), (2 * high * low, _HALF), (low * low, 0)):
                _add(total, product, 2 * shift + bit)
        _carry(total)
    return total


def _add(total: Counts, whole: Counts, shift: Counts) -> None:
    """Add whole * 2^shift to the digits of each row."""
    first = np.arange(len(whole))[:, None] * total.shape[1]
    for part, at in ((whole >> _HALF, shift + _HALF), (whole & ((1 << _HALF) - 1), shift)):
        moved = part * (np.int64(1) << (at & (_BITS - 1)))
        for digits, digit_index in ((moved & _MASK, first + (at >> 5)), (moved >> _BITS, first + (at >> 5) + 1)):
            # Of a chunk's digits, below 2^32 each, float64 adds up 2^21 without rounding.
            counted = np.bincount(digit_index.reshape(-1), digits.reshape(-1), total.size)
            total += counted.astype(np.int64).reshape(total.shape)


def _carry(total: Counts) -> None:
    for digit in range(total.shape[1] - 1):
        total[:, digit + 1] += total[:, digit] >> _BITS
        total[:, digit] &= _MASK


def carried(added: Counts) -> Counts:
    """Digits that were added over clients as the digits of one sum, which are the same for every partition."""
    total = added.copy()
    _carry(total)
    return total


def exact_value(digits: NDArray[np.int64], power: int) -> Fraction:
    """The sum that some digits stand for, those of several clients added up included."""
    whole = sum(int(digit) << (_BITS * position) for position, digit in enumerate(digits))
    return Fraction(whole, 1 << (power * _UNIT))


def rounded(value: Fraction) -> float:
    """The nearest float64; infinite beyond the largest."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def root(value: Fraction) -> float:
    """The square root, right to the last digit or the one before."""
    scale = max(0, 64 + (value.denominator.bit_length() - value.numerator.bit_length()) // 2)
    return rounded(Fraction(isqrt((value.numerator << 2 * scale) // value.denominator), 1 << scale))

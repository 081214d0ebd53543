"""Real numbers as whole ones that add up without rounding, plainly or in secure sums.

    v = sign(v) sum_k digit_k 2^(32 (1 - k)),  k = 0 ... 5:  |v| < 2^63, in steps of 2^-128

A float64 number of size 2^-75 or more is kept to its last bit, so the sum over clients is that of their numbers, in any
order and grouping, and is rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from parley.algorithms.trees.binning import Counts, Floats
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.tree import Tree

DIGITS = 6
_BASE = 2.0**32
_MOST = 2.0**63


def digits(values: Floats) -> Counts:
    """The digits of each number, [..., DIGITS]."""
    if not (np.abs(values) < _MOST).all():
        raise InputError("has sums beyond 2^63, or none at all; bring its columns to another unit.")
    left = np.abs(values) / _BASE
    parts = []
    for _ in range(DIGITS):
        digit = np.floor(left)
        left = (left - digit) * _BASE
        parts.append(digit)
    return (np.stack(parts, axis=-1) * np.sign(values)[..., None]).astype(np.int64)


def numbers(added: Counts) -> Floats:
    """The numbers that digits stand for, those of several clients added up included."""
    total = _carried(added)
    negative = total[..., 0] < 0
    total = np.where(negative[..., None], _carried(-added), total)
    value = np.zeros(added.shape[:-1])
    for position in range(DIGITS - 1, -1, -1):
        value = value / _BASE + total[..., position]
    return np.where(negative, -value, value) * _BASE


def _carried(added: Counts) -> Counts:
    total = added.copy()
    for position in range(DIGITS - 1, 0, -1):
        total[..., position - 1] += total[..., position] >> 32
        total[..., position] &= 2**32 - 1
    return total


def encoded(values: Mapping[str, Floats | float]) -> Tree:
    """A tree of digits."""
    return {name: torch.from_numpy(digits(np.asarray(value, np.float64))) for name, value in values.items()}


def decoded(tree: Tree) -> dict[str, Floats]:
    """The numbers of a tree of digits."""
    return {name: numbers(value.numpy()) for name, value in tree.items()}


def digits_form(**shapes: tuple[int, ...]) -> Form:
    """The form of a tree of digits of so many numbers."""
    return Form({name: (torch.int64, (*shape, DIGITS)) for name, shape in shapes.items()})

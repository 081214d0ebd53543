"""Choosing learning rates fairly: every arm from the same grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeVar

import numpy as np

Arm = TypeVar("Arm")


def best_rates(
    arms: Sequence[Arm], rates: Sequence[float], scores: Callable[[list[tuple[Arm, float]]], Sequence[float]]
) -> dict[Arm, float]:
    """Each arm with the rate that scores highest; `scores` judges all pairs at once, divergence as minus infinity.

    Where runs are compared, `scores` must use seeds and samples that they do not.
    """
    found = np.asarray(scores(list(product(arms, rates))), dtype=np.float64).reshape(len(arms), len(rates))
    return {arm: rates[int(own.argmax())] for arm, own in zip(arms, found, strict=True)}

"""Choosing learning rates fairly: every arm from the same grid, by the same rule (paper 004, Appendix E.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeVar

Arm = TypeVar("Arm")


def best_rates(
    arms: Sequence[Arm],
    rates: Sequence[float],
    scores: Callable[[list[tuple[Arm, float]]], Sequence[float]],
    further: int = 0,
) -> dict[Arm, float]:
    """Each arm with the rate that scores highest; `scores` judges all pairs at once, divergence as minus infinity.

    While an arm's best rate is the smallest or largest it has tried, half or twice that is tried too, at most
    `further` times. Where runs are compared, `scores` must use seeds and samples that they do not.
    """
    found: dict[Arm, dict[float, float]] = {arm: {} for arm in arms}
    pairs = list(product(arms, sorted(rates)))
    for attempt in range(further + 1):
        for (arm, rate), score in zip(pairs, scores(pairs), strict=True):
            found[arm][rate] = score
        pairs = [(arm, beyond) for arm, own in found.items() if (beyond := _beyond(own)) is not None]
        if not pairs or attempt == further:
            break
    return {arm: max(own, key=own.__getitem__) for arm, own in found.items()}


def _beyond(scored: dict[float, float]) -> float | None:
    """The next rate outside of those tried, on the side of the best; None if the best lies between others."""
    best = max(scored, key=scored.__getitem__)
    if best == min(scored):
        return best / 2
    return best * 2 if best == max(scored) else None

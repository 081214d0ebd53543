"""Choosing settings fairly: every arm from the same grid, by the same rule (paper 004, Appendix E.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, TypeVar, cast

Name = TypeVar("Name")
Point = TypeVar("Point")


def best_settings(
    arms: Sequence[Name],
    grid: Sequence[Point],
    scores: Callable[[list[tuple[Name, Point]]], Sequence[float]],
    further: int = 0,
) -> tuple[dict[Name, Point], dict[Name, dict[Point, float]]]:
    """Each arm with the point that scores highest, and all scores; `scores` judges all pairs at once.

    While an arm's best rate is the smallest or largest it has tried, half or twice that is tried too, at most
    `further` times; the points must be numbers then. Divergence scores minus infinity. Where runs are compared,
    `scores` must use seeds and samples that they do not.
    """
    by_arm: dict[Name, dict[Point, float]] = {arm: {} for arm in arms}
    ordered: list[Any] = sorted(cast(Any, grid))
    pairs: list[tuple[Name, Any]] = list(product(arms, ordered))
    for attempt in range(further + 1):
        for (arm, point), score in zip(pairs, scores(pairs), strict=True):
            by_arm[arm][point] = score
        if attempt == further:
            break
        pairs = [(arm, beyond) for arm, scored in by_arm.items() if (beyond := _beyond(scored)) is not None]
        if not pairs:
            break
    return {arm: max(scored, key=scored.__getitem__) for arm, scored in by_arm.items()}, by_arm


def _beyond(scored: dict[Any, float]) -> Any:
    """The next rate outside of those tried, on the side of the best; None if the best lies between others."""
    best = max(scored, key=scored.__getitem__)
    if best == min(scored):
        return best / 2
    return best * 2 if best == max(scored) else None

"""When to stop: by the rule of Su et al. for models that are linear in their parameters, else by held-out losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parley.advise.gain.folds import Array
from parley.core.errors import InputError
from parley.theory.kernel import GradientSteps, Stop, sigma_from_coordinates, stopping_round


@dataclass(frozen=True, eq=False)
class StopAdvice:
    """The recommended last round, and where it comes from."""

    round: int | None
    """None where nothing can be said."""
    reason: str
    """One or two sentences."""
    rule: Stop | None = None
    """Eq. (23)'s answer, where it applies."""
    low: int | None = None
    high: int | None = None
    """The range of the single folds' best rounds."""


def by_rule(
    eigenvalues: Array,
    coordinates: Array,
    outside: float,
    N: int,
    moved: float,
    rounds: int,
    sigma: float | None,
    norm: float,
) -> StopAdvice:
    """Eq. (23) from K's eigenvalues and y's coordinates in its eigenvectors; `moved` is eta * s of one round."""
    given = sigma is not None
    try:
        noise = sigma if sigma is not None else sigma_from_coordinates(eigenvalues, coordinates, outside, N)
    except InputError as error:
        return StopAdvice(None, f"no round can be recommended: {str(error).rstrip('.')} (--sigma).")
    stop = stopping_round(eigenvalues, N, GradientSteps(moved), noise, norm)
    reason = (
        f"where further rounds would fit more noise than signal; the noise has a standard deviation of {noise:.3g} "
        f"({'given' if given else 'estimated; or give --sigma'}). That takes the start to be {norm:g} away from the "
        f"truth (--norm), which nobody knows for real data: twice the distance counts like half the noise."
    )
    if rounds < stop.T:
        reason += f" The study's {rounds} rounds stop earlier than that."
    return StopAdvice(stop.T, reason, stop)


def linear_rule(
    Z: Array, y: Array, moved: float, rounds: int, sigma: float | None = None, norm: float = 1.0
) -> StopAdvice:
    """Eq. (23) for least squares on Z [N, d] and y [N]."""
    N = len(Z)
    values, vectors = np.linalg.eigh(Z.T @ Z / N)
    kept = values > max(Z.shape) * np.finfo(np.float64).eps * values.max()
    if not kept.any():
        return StopAdvice(None, "no round can be recommended: all inputs are zero.")
    coordinates = vectors[:, kept].T @ (Z.T @ y) / np.sqrt(N * values[kept])
    outside = max(float(y @ y - coordinates @ coordinates), 0.0)
    return by_rule(values[kept], coordinates, outside, N, moved, rounds, sigma, norm)


def by_curves(curves: Array, looked: Sequence[int]) -> StopAdvice:
    """The round of least mean held-out loss; curves [folds, rounds looked at]."""
    mean = np.nan_to_num(curves.mean(axis=0), nan=np.inf)
    best = looked[int(np.argmin(mean))]
    single = [looked[int(np.argmin(curve))] for curve in np.nan_to_num(curves, nan=np.inf)]
    low, high = min(single), max(single)
    reason = f"the least held-out error over {len(curves)} folds; single folds have theirs at rounds {low} to {high}."
    if best == looked[-1]:
        reason += " The error was still falling at the study's last round: more rounds may do better."
    return StopAdvice(best, reason, low=low, high=high)

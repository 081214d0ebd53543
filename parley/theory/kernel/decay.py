"""What t rounds do to one eigenvalue Lambda of K P, with x = eta * Lambda in [0, 1]; exact for tiny x and huge t."""

import numpy as np
import numpy.typing as npt
from scipy.special import xlog1py

from parley.core.errors import InputError
from parley.theory.kernel.points import as_numbers
from parley.theory.theta import Array


def kept(x: npt.ArrayLike, t: npt.ArrayLike) -> Array:
    """(1 - x)^t: how much of the initial error is left. Shapes broadcast."""
    return np.asarray(np.exp(_log_kept(x, t)), dtype=np.float64)


def learned(x: npt.ArrayLike, t: npt.ArrayLike) -> Array:
    """1 - (1 - x)^t: how much of the data is fitted. Shapes broadcast."""
    return np.asarray(-np.expm1(_log_kept(x, t)), dtype=np.float64)


def gathered(x: npt.ArrayLike, t: npt.ArrayLike) -> Array:
    """sum_{tau < t} (1 - x)^tau = learned / x, which is t at x = 0. Shapes broadcast."""
    x, t = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(t, dtype=np.float64))
    positive = x > 0
    return np.where(positive, learned(x, t) / np.where(positive, x, 1.0), t)


def _log_kept(x: npt.ArrayLike, t: npt.ArrayLike) -> Array:
    return np.asarray(xlog1py(np.asarray(t, dtype=np.float64), -np.asarray(x, dtype=np.float64)), dtype=np.float64)


def as_rounds(t: npt.ArrayLike) -> Array:
    """Round numbers as float64; refuses negative or broken ones."""
    rounds = as_numbers(t, "rounds")
    whole = np.isfinite(rounds) & (rounds >= 0) & (rounds == np.floor(rounds))
    if rounds.ndim > 1 or not rounds.size or not whole.all():
        raise InputError(f"rounds must be whole numbers of at least 0, one or a list of them, not {t!r}.")
    return rounds

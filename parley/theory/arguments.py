"""What functions of theory accept as numbers; everything else gets one sentence."""

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError

LARGEST, SMALLEST = 1e100, 1e-100
"""Sizes stay between these (or are 0), so that their squares and ratios are numbers, too."""


def check_whole(what: str, count: object, least: int = 1) -> None:
    """Refuse anything but a whole number of at least `least`."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < least:
        raise InputError(f"{what} must be a whole number of at least {least}, not {count}.")


def check_sizes(**sizes: float) -> None:
    """Refuse norms and noise levels that are negative, NaN, infinite or beyond squaring, by their names."""
    for name, value in sizes.items():
        if not 0 <= value < np.inf:
            raise InputError(f"{name} must be finite and at least 0, not {value:g}.")
        if value > LARGEST:
            raise InputError(f"{name} must be at most {LARGEST:g} to be computed with, not {value:g}; change its unit.")


def check_positive(**sizes: float) -> None:
    """Refuse what `check_sizes` refuses, and zero and what cannot be distinguished from it."""
    for name, value in sizes.items():
        if not 0 < value < np.inf:
            raise InputError(f"{name} must be positive and finite, not {value:g}.")
        check_sizes(**{name: value})
        if value < SMALLEST:
            raise InputError(
                f"{name} must be at least {SMALLEST:g} to be distinguishable from 0, not {value:g}; change its unit."
            )


def check_lengths(**values: npt.ArrayLike) -> None:
    """Refuse lists of unequal lengths and empty ones; single numbers go with any."""
    shapes = {name: np.shape(value) for name, value in values.items()}
    try:
        whole = np.broadcast_shapes(*shapes.values())
    except ValueError:
        whole = (0,)
    if 0 in whole:
        given = ", ".join(f"{name} of shape {shape}" for name, shape in shapes.items() if shape)
        raise InputError(f"{', '.join(shapes)} must be numbers or lists of one length, not {given}.")

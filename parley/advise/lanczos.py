"""Both ends of a symmetric operator's spectrum from products with vectors alone (Lanczos, fully reorthogonalised)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh_tridiagonal

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Extremes:
    """The smallest and largest eigenvalue found.

    Both are values of the Rayleigh quotient, so the spectrum reaches at least as far: `highest` is approached from
    below, `lowest` from above. Within `lowest_error` and `highest_error` of each there is an eigenvalue.
    """

    lowest: float
    highest: float
    lowest_error: float
    highest_error: float
    products: int
    """How many products with a vector it took."""

    @property
    def scale(self) -> float:
        """The largest eigenvalue in absolute value."""
        return max(abs(self.lowest), abs(self.highest))

    @property
    def floor(self) -> float:
        """Below this, `lowest` cannot be told from zero."""
        return max(self.lowest_error, 1e-12 * self.scale)


def extremes(
    product: Callable[[Array], Array],
    dimension: int,
    random: np.random.Generator,
    *,
    steps: int = 200,
    tolerance: float = 1e-8,
) -> Extremes:
    """The ends of the spectrum of v -> `product(v)`, [dimension], from a random start.

    Stops when both errors are below `tolerance` times the largest eigenvalue, after `steps` products, or when the
    whole space is spanned, at which point the eigenvalues are those of the operator to rounding.
    """
    vector = random.standard_normal(dimension)
    vector /= np.linalg.norm(vector)
    basis = np.empty((min(steps, dimension), dimension))
    diagonal: list[float] = []
    beside: list[float] = []
    result = Extremes(0.0, 0.0, np.inf, np.inf, 0)
    for count in range(len(basis)):
        basis[count] = vector
        image = product(vector)
        diagonal.append(float(vector @ image))
        for _ in range(2):  # twice is enough (Kahan and Parlett)
            image = image - basis[: count + 1].T @ (basis[: count + 1] @ image)
        left = float(np.linalg.norm(image))
        values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(beside))
        errors = left * np.abs(vectors[-1])
        result = Extremes(float(values[0]), float(values[-1]), float(errors[0]), float(errors[-1]), count + 1)
        if max(result.lowest_error, result.highest_error) <= tolerance * result.scale or left <= 1e-14 * result.scale:
            break
        vector = image / left
        beside.append(left)
    return result

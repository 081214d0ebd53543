"""Kernels k(x, z) in closed form. Each is called with points [n, p] and [m, p] and gives k as [n, m].

`diagonal(x)` is k(x_i, x_i), [n], without the matrix. Angles of the arc-cosine kernels are computed from halved sums
and differences, so that k keeps its precision for nearly parallel points.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.spatial.distance import cdist

from parley.core.errors import InputError
from parley.theory.kernel.points import as_points
from parley.theory.theta import Array


class Kernel(Protocol):
    """A symmetric positive semidefinite function of two points."""

    def __call__(self, x: Array, z: Array) -> Array:
        """k(x_i, z_j), [n, m]."""

    def diagonal(self, x: Array) -> Array:
        """k(x_i, x_i), [n]."""


@dataclass(frozen=True)
class Linear:
    """<x, z> + bias."""

    bias: float = 0.0
    """Added to every inner product; the model then has a constant."""

    def __post_init__(self) -> None:
        if not self.bias >= 0:
            raise InputError(f"the bias of a linear kernel must be at least 0, not {self.bias:g}.")

    def __call__(self, x: Array, z: Array) -> Array:
        return as_points(x) @ as_points(z).T + self.bias

    def diagonal(self, x: Array) -> Array:
        return _squared_norms(as_points(x)) + self.bias


@dataclass(frozen=True)
class Polynomial:
    """(shift + <x, z>)^degree; with shift 1 all polynomials of that degree."""

    degree: int = 2
    """Largest degree of the polynomials."""
    shift: float = 1.0
    """0 leaves out all lower degrees."""

    def __post_init__(self) -> None:
        if self.degree < 1 or not self.shift >= 0:
            raise InputError(
                f"a polynomial kernel needs degree >= 1 and shift >= 0, not {self.degree}, {self.shift:g}."
            )

    def __call__(self, x: Array, z: Array) -> Array:
        return np.asarray((self.shift + as_points(x) @ as_points(z).T) ** self.degree, dtype=np.float64)

    def diagonal(self, x: Array) -> Array:
        return np.asarray((self.shift + _squared_norms(as_points(x))) ** self.degree, dtype=np.float64)


@dataclass(frozen=True)
class RBF:
    """exp(-||x - z||^2 / (2 lengthscale^2))."""

    lengthscale: float = 1.0
    """Distance over which the function changes."""

    def __post_init__(self) -> None:
        _check_lengthscale(self.lengthscale)

    def __call__(self, x: Array, z: Array) -> Array:
        values = cdist(as_points(x), as_points(z), "sqeuclidean")
        values *= -0.5 / self.lengthscale**2
        return np.asarray(np.exp(values, out=values), dtype=np.float64)

    def diagonal(self, x: Array) -> Array:
        return np.ones(len(x))


@dataclass(frozen=True)
class Laplace:
    """exp(-||x - z||_1 / lengthscale)."""

    lengthscale: float = 1.0
    """Distance over which the function changes."""

    def __post_init__(self) -> None:
        _check_lengthscale(self.lengthscale)

    def __call__(self, x: Array, z: Array) -> Array:
        values = cdist(as_points(x), as_points(z), "cityblock")
        values /= -self.lengthscale
        return np.asarray(np.exp(values, out=values), dtype=np.float64)

    def diagonal(self, x: Array) -> Array:
        return np.ones(len(x))


@dataclass(frozen=True)
class Sobolev:
    """min(x, z) for points x >= 0 on the line: the first-order Sobolev space with f(0) = 0, eigenvalues ~ i^-2."""

    def __call__(self, x: Array, z: Array) -> Array:
        return np.minimum(self._line(x), self._line(z).T)

    def diagonal(self, x: Array) -> Array:
        return self._line(x)[:, 0]

    @staticmethod
    def _line(x: Array) -> Array:
        points = as_points(x)
        if points.shape[1] != 1 or (points < 0).any():
            raise InputError(
                "the Sobolev kernel min(x, z) needs one-dimensional points x >= 0; rescale them to [0, 1]."
            )
        return points


@dataclass(frozen=True)
class ArcCosine:
    """The arc-cosine kernel of order 0, 1 or 2 (Cho and Saul 2009): 2 E[H(w'x) H(w'z) (w'x)^n (w'z)^n], w ~ N(0, I).

    H is the step function. Half of order 0 is the kernel that Su et al. writes for two-layer ReLU networks.
    """

    order: int = 1
    """0, 1 or 2."""

    def __post_init__(self) -> None:
        if self.order not in (0, 1, 2):
            raise InputError(f"the arc-cosine kernel has order 0, 1 or 2 here, not {self.order}.")

    def __call__(self, x: Array, z: Array) -> Array:
        x, z = as_points(x), as_points(z)
        scale = np.outer(np.sqrt(_squared_norms(x)), np.sqrt(_squared_norms(z)))
        return np.asarray(scale**self.order * _arc_cosine(_angles(x, z), self.order) / np.pi, dtype=np.float64)

    def diagonal(self, x: Array) -> Array:
        squares = _squared_norms(as_points(x))
        if self.order == 0:
            return np.where(squares > 0, 1.0, 0.5)
        return np.asarray(squares**self.order * (3.0 if self.order == 2 else 1.0), dtype=np.float64)


@dataclass(frozen=True)
class TwoLayerNTK:
    """The neural tangent kernel of an infinitely wide two-layer ReLU network without biases.

    `<x, z> E[relu'(w'x) relu'(w'z)]` when the first layer alone is trained (Du et al. 2018), plus
    `E[relu(w'x) relu(w'z)]` when both are. Positive definite if no two points are parallel (Remark 6).
    """

    both_layers: bool = False
    """Both layers are trained, not the first alone."""

    def __call__(self, x: Array, z: Array) -> Array:
        x, z = as_points(x), as_points(z)
        first = (x @ z.T) * ArcCosine(0)(x, z) / 2
        return first + ArcCosine(1)(x, z) / 2 if self.both_layers else first

    def diagonal(self, x: Array) -> Array:
        return _squared_norms(as_points(x)) * (1.0 if self.both_layers else 0.5)


@dataclass(frozen=True, eq=False)
class Precomputed:
    """Kernel values the caller computed: points are row numbers of `matrix` [n, n], symmetric positive semidefinite.

    Put the points at which you want predictions into the matrix too.
    """

    matrix: Array

    def __post_init__(self) -> None:
        matrix = np.asarray(self.matrix, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
            raise InputError(f"a precomputed kernel must be a finite square matrix, not of shape {matrix.shape}.")
        if not np.allclose(matrix, matrix.T, rtol=1e-10, atol=1e-12 * float(np.abs(matrix).max(initial=0.0))):
            raise InputError("a precomputed kernel must be symmetric; give (K + K') / 2 if that is what you mean.")
        object.__setattr__(self, "matrix", (matrix + matrix.T) / 2)

    def __call__(self, x: Array, z: Array) -> Array:
        return np.asarray(self.matrix[np.ix_(self._rows(x), self._rows(z))], dtype=np.float64)

    def diagonal(self, x: Array) -> Array:
        return np.asarray(np.diagonal(self.matrix)[self._rows(x)], dtype=np.float64)

    def _rows(self, x: Array) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        points = as_points(x)
        rows = np.rint(points[:, 0]).astype(np.intp)
        if (
            points.shape[1] != 1
            or (rows != points[:, 0]).any()
            or not (0 <= rows.min() <= rows.max() < len(self.matrix))
        ):
            raise InputError(f"points of a precomputed kernel are row numbers from 0 to {len(self.matrix) - 1}.")
        return rows


def _check_lengthscale(lengthscale: float) -> None:
    if not 0 < lengthscale < np.inf:
        raise InputError(f"the lengthscale must be positive and finite, not {lengthscale:g}.")


def _squared_norms(x: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->i", x, x), dtype=np.float64)


def _angles(x: Array, z: Array) -> Array:
    """The angle between x_i and z_j, [n, m], by Kahan's formula; pi/2 where a point is zero, as for H(0) = 1/2."""
    lengths_x, lengths_z = np.sqrt(_squared_norms(x)), np.sqrt(_squared_norms(z))
    unit_x = x / np.where(lengths_x > 0, lengths_x, 1.0)[:, None]
    unit_z = z / np.where(lengths_z > 0, lengths_z, 1.0)[:, None]
    angle = 2 * np.arctan2(cdist(unit_x, unit_z), cdist(unit_x, -unit_z))
    return np.asarray(np.where(np.outer(lengths_x, lengths_z) > 0, angle, np.pi / 2), dtype=np.float64)


def _arc_cosine(angle: Array, order: int) -> Array:
    """J_n of Cho and Saul."""
    if order == 0:
        return np.asarray(np.pi - angle, dtype=np.float64)
    sine, cosine = np.sin(angle), np.cos(angle)
    if order == 1:
        return np.asarray(sine + (np.pi - angle) * cosine, dtype=np.float64)
    return np.asarray(3 * sine * cosine + (np.pi - angle) * (1 + 2 * cosine**2), dtype=np.float64)

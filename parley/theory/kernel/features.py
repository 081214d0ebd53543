"""Finite feature maps phi: X -> R^d, and the kernel <phi(x), phi(z)> of each.

A map is called with points [n, p] and gives [n, d]. `FeatureSpace` runs the federation on theta [d] directly, at a
cost linear in the number of samples.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import eval_chebyt, eval_chebyu

from parley.core.errors import InputError, nearest
from parley.theory.arguments import check_positive, check_whole
from parley.theory.kernel.points import as_points
from parley.theory.theta import Array


class FeatureMap(Protocol):
    """phi of the model f(x) = <theta, phi(x)>."""

    def __call__(self, x: Array) -> Array:
        """phi(x_i), [n, d]."""


@dataclass(frozen=True)
class Identity:
    """phi(x) = x: linear regression."""

    def __call__(self, x: Array) -> Array:
        return as_points(x)


@dataclass(frozen=True)
class Monomials:
    """1, x, ..., x^degree of points on the line."""

    degree: int

    def __post_init__(self) -> None:
        _check_degree(self.degree)

    def __call__(self, x: Array) -> Array:
        return np.vander(_line(x), self.degree + 1, increasing=True)


@dataclass(frozen=True)
class Chebyshev:
    """Chebyshev polynomials of degree 0 ... `degree` of points on the line; `kind` 1 (T_n) or 2 (U_n)."""

    degree: int
    kind: int = 1

    def __post_init__(self) -> None:
        _check_degree(self.degree)
        if self.kind not in (1, 2):
            raise InputError(f"Chebyshev polynomials are of kind 1 or 2, not {self.kind}.")

    def __call__(self, x: Array) -> Array:
        evaluate = eval_chebyt if self.kind == 1 else eval_chebyu
        return np.asarray(evaluate(np.arange(self.degree + 1), _line(x)[:, None]), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class RandomFourier:
    """cos and sin of random projections (Rahimi and Recht 2007); build it with `random_fourier`."""

    frequencies: Array
    """[p, d / 2]."""

    def __call__(self, x: Array) -> Array:
        points = as_points(x)
        if points.shape[1] != len(self.frequencies):
            raise InputError(f"these random features take {len(self.frequencies)} columns, not {points.shape[1]}.")
        phases = points @ self.frequencies
        both = np.concatenate([np.cos(phases), np.sin(phases)], axis=1)
        both /= np.sqrt(self.frequencies.shape[1])
        return both


def random_fourier(
    columns: int, features: int, rng: np.random.Generator, lengthscale: float = 1.0, kernel: str = "rbf"
) -> RandomFourier:
    """Random features (an even number) whose inner product is the `RBF` or `Laplace` kernel in expectation."""
    if features < 2 or features % 2:
        raise InputError(f"random Fourier features come in pairs; give an even number, not {features}.")
    check_whole("the number of columns", columns)
    check_whole("the number of features", features, 2)
    check_positive(lengthscale=lengthscale)
    shape = (columns, features // 2)
    if kernel == "rbf":
        draws = rng.standard_normal(shape)
    elif kernel == "laplace":
        draws = rng.standard_cauchy(shape)
    else:
        raise InputError(f"there are no random features for the kernel '{kernel}'; {nearest(kernel, RANDOM_KERNELS)}")
    return RandomFourier(draws / lengthscale)


RANDOM_KERNELS = ("laplace", "rbf")


@dataclass(frozen=True)
class FeatureKernel:
    """k(x, z) = <phi(x), phi(z)>."""

    phi: FeatureMap

    def __call__(self, x: Array, z: Array) -> Array:
        return np.asarray(self.phi(x) @ self.phi(z).T, dtype=np.float64)

    def diagonal(self, x: Array) -> Array:
        phi = self.phi(x)
        return np.asarray(np.einsum("ij,ij->i", phi, phi), dtype=np.float64)


def _line(x: Array) -> Array:
    points = as_points(x)
    if points.shape[1] != 1:
        raise InputError(f"polynomial features need one-dimensional points, not {points.shape[1]} columns.")
    return points[:, 0]


def _check_degree(degree: int) -> None:
    check_whole("the degree", degree, 0)

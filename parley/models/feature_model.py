"""Least squares on fixed features, f(x) = theta phi(x): the models of Su et al. that are linear in their parameters.

    models.features(RandomFourierFeatures(200, lengthscale=2.0))       # or [model] name = "features", [model.map] ...

phi is one of the maps of `parley.theory.kernel`, computed in NumPy and float64 whatever the data's type. It depends on
the seed and on public points only, never on a client's samples, so that everybody can have it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from parley.core.errors import InputError
from parley.core.registry import Registry
from parley.core.threads import one_thread
from parley.models.spec import models
from parley.theory.kernel.features import Chebyshev, FeatureMap, Identity, Monomials, random_fourier
from parley.theory.kernel.kernels import RBF, Kernel
from parley.theory.kernel.lowrank import nystroem
from parley.theory.kernel.points import as_points
from parley.theory.theta import Array

feature_maps: Registry[type[FeatureSpec]] = Registry("feature map")


class FeatureModel(nn.Module):
    """[n, ...] -> theta phi(x), [n, outputs], without a bias; it starts at zero.

    Every algorithm can train it. The arrays of phi (frequencies, landmarks) are parameters that are not trained, so
    that an export has them. The runtime 'stacked', TorchScript and ONNX cannot follow the model into NumPy.
    """

    def __init__(self, phi: FeatureMap, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.phi = phi
        names: list[str] = [f.name for f in fields(phi)] if is_dataclass(phi) else []
        self.arrays = tuple(name for name in names if isinstance(getattr(phi, name), np.ndarray))
        for name in self.arrays:
            self.register_parameter(name, nn.Parameter(torch.tensor(getattr(phi, name)), requires_grad=False))
        self.head = nn.Linear(self.features(torch.zeros(1, *shape)).shape[1], outputs, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.head.weight)

    def features(self, x: Tensor) -> Tensor:
        """phi(x), [n, d]."""
        phi: Any = self.phi
        if self.arrays:
            phi = replace(phi, **{name: self.get_parameter(name).numpy() for name in self.arrays})
        with one_thread(), np.errstate(over="ignore", invalid="ignore"):
            return torch.from_numpy(np.ascontiguousarray(phi(points_of(x))))

    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = self.head(self.features(x))
        return values


def points_of(x: Tensor, where: str = "the data") -> Array:
    """Samples [n, ...] as float64 points [n, p]; refuses NaN and infinity."""
    return as_points(x.detach().double().reshape(len(x), -1).numpy(), where)


@dataclass(frozen=True)
class FeatureSpec:
    """A feature map before the data's shape is known."""

    def make(self, columns: int, public: Array | None, rng: np.random.Generator) -> FeatureMap:
        """The map of points with so many columns; `public` are the points that everybody may see."""
        return Identity()


@feature_maps("identity")
@dataclass(frozen=True)
class IdentityFeatures(FeatureSpec):
    """phi(x) = x: linear regression without a constant."""


@feature_maps("monomials")
@dataclass(frozen=True)
class MonomialFeatures(FeatureSpec):
    """1, x, ..., x^degree of points on the line."""

    degree: int = 3
    """Largest power."""

    def make(self, columns: int, public: Array | None, rng: np.random.Generator) -> FeatureMap:
        return Monomials(self.degree)


@feature_maps("chebyshev")
@dataclass(frozen=True)
class ChebyshevFeatures(FeatureSpec):
    """Chebyshev polynomials of points on the line, best in [-1, 1]."""

    degree: int = 10
    """Largest degree."""
    kind: int = 1
    """1 for T_n, 2 for U_n."""

    def make(self, columns: int, public: Array | None, rng: np.random.Generator) -> FeatureMap:
        return Chebyshev(self.degree, self.kind)


@feature_maps("random-fourier")
@dataclass(frozen=True)
class RandomFourierFeatures(FeatureSpec):
    """Random cosines and sines whose inner products approach a kernel (Rahimi and Recht, 2007)."""

    features: int = 200
    """How many, an even number (d)."""
    lengthscale: float = 1.0
    """Lengthscale of the kernel."""
    kernel: Literal["rbf", "laplace"] = "rbf"
    """The kernel in expectation."""

    def make(self, columns: int, public: Array | None, rng: np.random.Generator) -> FeatureMap:
        return random_fourier(columns, self.features, rng, self.lengthscale, self.kernel)


@feature_maps("nystroem")
@dataclass(frozen=True)
class NystroemFeatures(FeatureSpec):
    """Nystrom features of a kernel with landmarks among the federation's public points (`data.public_fraction`)."""

    features: int = 100
    """Landmarks at most (d); they are chosen among the public points by pivoted Cholesky."""
    kernel: Kernel = field(default_factory=RBF)
    """The kernel that is approximated, exact at the landmarks."""

    def make(self, columns: int, public: Array | None, rng: np.random.Generator) -> FeatureMap:
        if public is None:
            raise InputError(
                "Nystrom features take their landmarks from public points, and this federation has none: "
                "set data.public_fraction, or use random-fourier features."
            )
        return nystroem(self.kernel, public, self.features, rng)


@models("features")
@dataclass(frozen=True)
class Features:
    """Least squares on fixed features in float64, starting at zero: polynomials, random Fourier features, Nystrom."""

    map: FeatureSpec = field(default_factory=RandomFourierFeatures)
    """phi: identity, monomials, chebyshev, random-fourier or nystroem."""

    def build(self, shape: tuple[int, ...], outputs: int) -> FeatureModel:
        return self.build_on(shape, outputs, None)

    def build_on(self, shape: tuple[int, ...], outputs: int, public: Tensor | None) -> FeatureModel:
        """As `build`, with the federation's public inputs [m, *shape] at hand."""
        if prod(shape) < 1:
            raise InputError(f"model 'features' needs samples with at least one number, not of shape {shape}.")
        rng = np.random.Generator(np.random.PCG64(int(torch.randint(2**62, ()))))
        with one_thread():
            phi = self.map.make(prod(shape), None if public is None else points_of(public, "the public data"), rng)
        return FeatureModel(phi, shape, outputs)

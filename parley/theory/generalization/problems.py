"""Strongly convex problems on which a bound and the truth can be compared: mean estimation and ridge regression."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError
from parley.theory.generalization.inputs import check_counts, check_matrices, check_points, weights_or_equal
from parley.theory.generalization.losses import Losses
from parley.theory.region import check_curvature
from parley.theory.theta import Array


class LearningProblem(Protocol):
    """Clients with known distributions, and how to draw their samples."""

    @property
    def p(self) -> Array:
        """The clients' weights [K], summing to one."""

    @property
    def dimension(self) -> int:
        """d."""

    @property
    def L(self) -> float:
        """Smoothness of the loss of every possible sample."""

    @property
    def mu(self) -> float:
        """Strong convexity of the loss of every possible sample."""

    def population(self, client: int) -> Losses:
        """R_k, without leading axes."""

    def draw(self, client: int, trials: int, groups: int, rng: np.random.Generator) -> Losses:
        """R_S_k of independent samples cut into groups, leading axes [trials, groups] (1 where all share a value)."""


@dataclass(frozen=True, eq=False)
class MeanEstimation:
    """l(theta, z) = 1/2 (theta - z)' H_k (theta - z), z ~ N(m_k, C_k): everything has a closed form (`exact_terms`).

    `means` [K, d]; `samples` n_k, a number for all or [K]; `covariances` C_k and `hessians` H_k a number times the
    identity, [d, d] for all or [K, d, d]; `weights` [K] (default: equal).
    """

    means: npt.ArrayLike
    samples: npt.ArrayLike
    covariances: npt.ArrayLike = 1.0
    hessians: npt.ArrayLike = 1.0
    weights: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        check_curvature(self.L, self.mu)
        if not self.n.shape == self.p.shape == self.C.shape[:1]:  # each looks at itself on first use
            raise InputError("give the samples and weights of as many clients as there are means.")

    @cached_property
    def m(self) -> Array:
        """The means [K, d]."""
        return check_points(self.means)

    @cached_property
    def n(self) -> npt.NDArray[np.int64]:
        """Samples per client [K]."""
        return check_counts(self.samples, len(self.m))

    @cached_property
    def p(self) -> Array:
        return weights_or_equal(self.weights, len(self.m))

    @cached_property
    def C(self) -> Array:
        """The covariances [K, d, d]."""
        return check_matrices("covariances", self.covariances, *self.m.shape)

    @cached_property
    def H(self) -> Array:
        """The Hessians [K, d, d]."""
        return check_matrices("hessians", self.hessians, *self.m.shape)

    @property
    def dimension(self) -> int:
        return int(self.m.shape[1])

    @cached_property
    def L(self) -> float:
        return float(np.linalg.eigvalsh(self.H).max())

    @cached_property
    def mu(self) -> float:
        return float(np.linalg.eigvalsh(self.H).min())

    def population(self, client: int) -> Losses:
        H, m = self.H[client], self.m[client]
        return Losses(H, H @ m, np.asarray(0.5 * (m @ H @ m + np.trace(H @ self.C[client]))))

    def draw(self, client: int, trials: int, groups: int, rng: np.random.Generator) -> Losses:
        H, size = self.H[client], group_size(int(self.n[client]), groups, client)
        normal = rng.standard_normal((trials, groups, size, self.dimension))
        z = self.m[client] + normal @ _factor(self.C[client]).T
        Hz = z @ H
        return Losses(H[None, None], Hz.mean(axis=2), 0.5 * (z * Hz).sum(axis=-1).mean(axis=-1))


@dataclass(frozen=True, eq=False)
class RidgeRegression:
    """l(theta, (x, y)) = 1/2 (x'theta - y)^2 + ridge/2 ||theta||^2, y = x'theta_k* + noise * N(0, 1).

    x is uniform on the ellipsoid { sqrt(d) B u : ||u|| = 1 } with B B' = C_k, so that L = d * largest eigenvalue +
    ridge is finite; with Gaussian x there is no L and the theorems say nothing. mu = ridge. The gap has no closed form:
    see `simulate`. `truths` theta_k* [K, d]; other shapes as in `MeanEstimation`.
    """

    truths: npt.ArrayLike
    samples: npt.ArrayLike
    ridge: float
    noise: float = 1.0
    covariances: npt.ArrayLike = 1.0
    weights: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        check_curvature(self.L, self.mu)
        if not (np.isfinite(self.noise) and self.noise >= 0):
            raise InputError(f"the noise must be at least 0 and finite, not {self.noise:g}.")
        if not self.n.shape == self.p.shape == self.C.shape[:1]:
            raise InputError("give the samples and weights of as many clients as there are truths.")

    @cached_property
    def truth(self) -> Array:
        """theta_k* [K, d]."""
        return check_points(self.truths)

    @cached_property
    def n(self) -> npt.NDArray[np.int64]:
        """Samples per client [K]."""
        return check_counts(self.samples, len(self.truth))

    @cached_property
    def p(self) -> Array:
        return weights_or_equal(self.weights, len(self.truth))

    @cached_property
    def C(self) -> Array:
        """E xx' of every client [K, d, d]."""
        return check_matrices("covariances", self.covariances, *self.truth.shape)

    @property
    def dimension(self) -> int:
        return int(self.truth.shape[1])

    @cached_property
    def L(self) -> float:
        return float(self.dimension * np.linalg.eigvalsh(self.C).max() + self.ridge)

    @property
    def mu(self) -> float:
        return self.ridge

    def population(self, client: int) -> Losses:
        C, truth = self.C[client], self.truth[client]
        constant = np.asarray(0.5 * (truth @ C @ truth + self.noise**2))
        return Losses(C + self.ridge * np.eye(self.dimension), C @ truth, constant)

    def draw(self, client: int, trials: int, groups: int, rng: np.random.Generator) -> Losses:
        size = group_size(int(self.n[client]), groups, client)
        u = rng.standard_normal((trials, groups, size, self.dimension))
        u *= np.sqrt(self.dimension) / np.linalg.norm(u, axis=-1, keepdims=True)
        x = u @ _factor(self.C[client]).T
        y = x @ self.truth[client] + self.noise * rng.standard_normal((trials, groups, size))
        turned = np.swapaxes(x, -1, -2)
        hessian = turned @ x / size + self.ridge * np.eye(self.dimension)
        return Losses(hessian, (turned @ y[..., None])[..., 0] / size, 0.5 * (y**2).mean(axis=-1))


def group_size(samples: int, groups: int, client: int) -> int:
    """Samples per group; refuse groups of unequal size."""
    if samples % groups:
        raise InputError(f"client {client} has {samples} samples, which {groups} steps cannot share equally.")
    return samples // groups


def _factor(covariance: Array) -> Array:
    """B with B B' = covariance, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)), dtype=np.float64)

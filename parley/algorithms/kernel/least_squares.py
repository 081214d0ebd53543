"""What a client of Su et al. does in a round: gradient or proximal steps on its squared error, batch after batch.

Client i minimises 1/(2 n_i) sum_j (y_ij - f(x_ij))^2. Whatever the step, f changes by coefficients a on kernels at the
batch's points, f <- f + sum_B a_j k(., x_j), with the residual r = y_B - f(x_B) and K_B = [k(x_j, x_l)] of the batch:

    FedAvg    a = eta/n_i r                                   (eta B/n_i times the gradient of the batch's mean)
    FedProx   a = (I + eta/n_i K_B)^-1 eta/n_i r              (the exact proximal step from the latest iterate)

FedAvg makes `s` passes over the batches. All its steps on the whole data are one step with P_i = sum_{tau < s}
(I - eta K_i)^tau in between (K_i = K_B / n_i), which is taken in closed form where s exceeds the number of samples.
Everything is NumPy in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from torch import Tensor

from parley.algorithms import protocol
from parley.core.errors import InputError
from parley.theory.kernel.blocks import psd_eigh
from parley.theory.kernel.kernels import Kernel
from parley.theory.kernel.methods import KernelStep as Method
from parley.theory.kernel.methods import ProximalStep as FedProx
from parley.theory.kernel.points import check_finite
from parley.theory.theta import Array
from parley.training.losses import half_squares, mse
from parley.training.task import Task


@dataclass(frozen=True)
class LeastSquares(protocol.Algorithm):
    """What the methods of Su et al. have in common."""

    lr: float = 0.5
    """Step size (eta)."""
    batch: int | None = None
    """Samples per step, in the order the client has them; by default, or with 0, all of a client's samples."""

    def __post_init__(self) -> None:
        if self.batch == 0:
            object.__setattr__(self, "batch", None)
        if self.batch is not None and self.batch < 1:
            raise InputError(f"batch must be at least 0, not {self.batch}.")
        self.method  # noqa: B018 (checks the step size and the number of steps)

    @property
    def needs(self) -> protocol.Needs:
        return protocol.Needs(cpu=True)

    @property
    def method(self) -> Method:
        """FedAvg or FedProx, as the theory has it."""
        raise InputError(f"{type(self).__name__} is the common part of methods, not one of them.")

    def check(self, task: Task) -> None:
        """Refuses tasks that are not least squares."""
        if task.info.kind != "regression" or task.loss not in (mse, half_squares):
            raise InputError(
                f"{type(self).__name__} fits numbers by least squares, with the loss mse or half-squares; "
                f"'{task.info.name}' has other targets, or another loss was chosen."
            )


def targets_of(task: Task, y: Tensor) -> Array:
    """[n, outputs] in float64; refuses NaN and infinity."""
    values = y.double().reshape(len(y), task.info.outputs).numpy()
    check_finite(values, "its targets")
    return values


Step = Callable[[Array], Array]
"""Residuals of a batch [b, outputs] -> coefficients at its points [b, outputs]."""


class Space(Protocol):
    """Where a client's function lives while it takes steps; batches are numbered."""

    targets: list[Array]
    """Of each batch, [b, outputs]."""

    def gram(self, batch: int) -> Array:
        """K_B, [b, b]."""

    def trace(self, batch: int) -> float:
        """Of K_B."""

    def values(self, batch: int) -> Array:
        """f at the batch's points, [b, outputs]."""

    def add(self, batch: int, coefficients: Array) -> None:
        """f <- f + sum_B a_j k(., x_j)."""


@dataclass
class SampleSpace:
    """f as its values at the client's points, and the coefficients it has gained."""

    matrix: Array
    """[k(x_j, x_l)], [n, n]."""
    batches: list[slice]
    targets: list[Array]
    f: Array
    """f at all points, [n, outputs]."""
    coefficients: Array
    """[n, outputs]."""

    @classmethod
    def of(cls, kernel: Kernel, points: Array, targets: Array, values: Array, batch: int | None) -> SampleSpace:
        with np.errstate(over="ignore", invalid="ignore"):
            matrix, parts = kernel(points, points), _batches(len(points), batch)
        if not np.isfinite(matrix).all():
            raise InputError("the kernel is not finite at its points; rescale the data.")
        return cls(matrix, parts, [targets[p] for p in parts], values.copy(), np.zeros_like(values))

    def gram(self, batch: int) -> Array:
        part = self.batches[batch]
        return self.matrix[part, part]

    def trace(self, batch: int) -> float:
        return float(np.trace(self.gram(batch)))

    def values(self, batch: int) -> Array:
        return self.f[self.batches[batch]]

    def add(self, batch: int, coefficients: Array) -> None:
        part = self.batches[batch]
        self.coefficients[part] += coefficients
        self.f += self.matrix[:, part] @ coefficients


@dataclass
class FeatureSpace:
    """f = theta phi(x), as theta."""

    features: list[Array]
    """phi at each batch's points, [b, d]."""
    targets: list[Array]
    theta: Array
    """[d, outputs]."""

    @classmethod
    def of(cls, features: Array, targets: Array, theta: Array, batch: int | None, method: Method) -> FeatureSpace:
        parts = [(features[part], targets[part]) for part in _batches(len(features), batch)]
        if isinstance(method, FedProx) or method.s > features.shape[1]:
            parts = [_compressed(*part) for part in parts]
        return cls([phi for phi, _ in parts], [y for _, y in parts], theta.copy())

    def gram(self, batch: int) -> Array:
        """K_B, or Phi_B'Phi_B where that is smaller: it has the same eigenvalues but for zeros."""
        phi = self.features[batch]
        return np.asarray(phi @ phi.T if phi.shape[0] <= phi.shape[1] else phi.T @ phi, dtype=np.float64)

    def trace(self, batch: int) -> float:
        return float(np.square(self.features[batch]).sum())

    def values(self, batch: int) -> Array:
        return np.asarray(self.features[batch] @ self.theta, dtype=np.float64)

    def add(self, batch: int, coefficients: Array) -> None:
        self.theta += self.features[batch].T @ coefficients


def descend(space: Space, method: Method, n: int) -> None:
    """The client's round, in place; `n` is its number of samples. Refuses steps that are too large for FedAvg."""
    closed = len(space.targets) == 1 and method.s > len(space.targets[0])
    steps = [_step(space, batch, method, n, closed) for batch in range(len(space.targets))]
    for _ in range(1 if closed else method.s):
        for batch, (step, targets) in enumerate(zip(steps, space.targets, strict=True)):
            space.add(batch, step(targets - space.values(batch)))


def _step(space: Space, batch: int, method: Method, n: int, closed: bool) -> Step:
    rate = method.eta / n
    if isinstance(method, FedProx):
        gram = space.gram(batch)
        factor = cho_factor(np.eye(len(gram)) + rate * gram, check_finite=False)
        return lambda residual: np.asarray(cho_solve(factor, rate * residual, check_finite=False), dtype=np.float64)
    # The trace bounds the norm and costs little; for kernels with k(x, x) = 1 it settles the matter.
    if closed or not rate * space.trace(batch) < 1:
        values, vectors = psd_eigh(space.gram(batch) / n, "the kernel matrix")
        method.check(method.eta * float(values[-1]))
    if not closed:
        return lambda residual: rate * residual
    multiplier = rate * method.multiplier(values)[:, None]
    return lambda residual: np.asarray(vectors @ (multiplier * (vectors.T @ residual)), dtype=np.float64)


def _compressed(features: Array, targets: Array) -> tuple[Array, Array]:
    """The same gradient and curvature from at most d rows: Phi = Q R, and R with Q'y in place of Phi with y."""
    if features.shape[0] <= features.shape[1]:
        return features, targets
    Q, R = np.linalg.qr(features)
    return R, Q.T @ targets


def _batches(n: int, size: int | None) -> list[slice]:
    return [slice(start, start + (size or n)) for start in range(0, n, size or n)]

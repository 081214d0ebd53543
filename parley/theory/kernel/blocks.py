"""The block diagonal matrix P (Su et al., eq. 12), held as one eigendecomposition per client and never formed."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.linalg import eigh

from parley.core.errors import InputError
from parley.core.threads import one_thread
from parley.theory.kernel.kernels import Kernel
from parley.theory.kernel.methods import KernelStep
from parley.theory.kernel.points import Samples
from parley.theory.theta import Array

SMALL = 1000
"""Matrices up to this size are decomposed on one thread."""


def rounding(eigenvalues: Array, scale: float = 0.0) -> float:
    """How large a computed eigenvalue of a singular matrix may be, from all or the largest of its eigenvalues.

    `scale` is the norm of what the matrix was computed from, if that is larger than the matrix.
    """
    largest = max(float(np.abs(eigenvalues).max(initial=0.0)), scale)
    return 30 * float(np.sqrt(len(eigenvalues)) * np.finfo(np.float64).eps * largest)


def psd_eigh(matrix: Array, what: str, overwrite: bool = False, scale: float = 0.0) -> tuple[Array, Array]:
    """Ascending eigenvalues, at least 0, and eigenvectors; refuses a matrix that is not positive semidefinite."""
    # Threads that wait for each other every few operations save little, and on a busy machine cost minutes.
    with one_thread() if len(matrix) <= SMALL else nullcontext():
        values, vectors = eigh(matrix, overwrite_a=overwrite, check_finite=False)
    if values[0] < -10 * rounding(values, scale):
        raise InputError(f"{what} is not positive semidefinite (eigenvalue {values[0]:.3g}); this is not a kernel.")
    return np.maximum(values, 0.0), vectors


@dataclass(frozen=True, eq=False)
class Blocks:
    """P of one federation: eigenvalues and eigenvectors of each K_i = [k(x_ij, x_il) / n_i]."""

    method: KernelStep
    slices: tuple[slice, ...] = field(repr=False)
    eigenvalues: Sequence[Array] = field(repr=False)
    """Of K_i, [n_i] each."""
    eigenvectors: Sequence[Array] = field(repr=False)

    @classmethod
    def of(cls, kernel: Kernel, samples: Samples, method: KernelStep) -> "Blocks":
        """Checks gamma < 1 for FedAvg; costs sum_i n_i^3 time and sum_i n_i^2 memory."""
        values, vectors = [], []
        for number, (part, size) in enumerate(zip(samples.slices, samples.sizes, strict=True)):
            points = samples.x[part]
            gram = kernel(points, points)
            if not np.isfinite(gram).all():
                raise InputError(f"the kernel is not finite at client {number}'s points; rescale the data.")
            spectrum = psd_eigh(gram / size, f"the kernel matrix of client {number}", overwrite=True)
            values.append(spectrum[0])
            vectors.append(spectrum[1])
        blocks = cls(method, samples.slices, values, vectors)
        method.check(blocks.gamma)
        return blocks

    @cached_property
    def gamma(self) -> float:
        """eta * max_i ||K_i||."""
        return self.method.eta * max(float(values[-1]) for values in self.eigenvalues)

    @property
    def kappa(self) -> float:
        """Eq. (14), the bound on ||P|| ||P^-1||."""
        return self.method.kappa(self.gamma)

    @property
    def norm(self) -> float:
        """||P||."""
        return max(float(multiplier.max()) for multiplier in self._multipliers)

    @property
    def condition(self) -> float:
        """||P|| ||P^-1|| itself."""
        return self.norm / min(float(multiplier.min()) for multiplier in self._multipliers)

    def apply(self, vector: Array, power: float = 1.0) -> Array:
        """P^power times a vector [N] or the columns of a matrix [N, k]."""
        result = np.empty_like(vector, dtype=np.float64)
        for part, multipliers, vectors in zip(self.slices, self._multipliers, self.eigenvectors, strict=True):
            multiplier = multipliers**power
            rotated = vectors.T @ vector[part]
            result[part] = vectors @ (multiplier[:, None] * rotated if vector.ndim == 2 else multiplier * rotated)
        return result

    def block(self, client: int, power: float = 1.0) -> Array:
        """P_ii^power, [n_i, n_i]."""
        vectors = self.eigenvectors[client]
        return np.asarray((vectors * self._multipliers[client] ** power) @ vectors.T, dtype=np.float64)

    @cached_property
    def _multipliers(self) -> list[Array]:
        """P_ii's eigenvalues."""
        return [self.method.multiplier(values) for values in self.eigenvalues]

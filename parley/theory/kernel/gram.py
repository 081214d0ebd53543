"""The normalised kernel matrix K = [k(x_i, x_j) / N] as something to multiply with, stored or computed on the fly."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg.blas import dsymv

from parley.core.errors import InputError
from parley.theory.kernel.kernels import Kernel
from parley.theory.kernel.points import Samples
from parley.theory.theta import Array

CHUNK_BYTES = 2**28
"""Working memory of products with parts of K that are not stored."""
TILE = 512
"""Rows of K that are computed at once."""


@dataclass(frozen=True, eq=False)
class Gram:
    """K of stacked samples; kept in memory while it takes at most `memory` bytes (4 GiB: N up to 23,000)."""

    kernel: Kernel
    samples: Samples
    memory: float = 4 * 2**30

    @property
    def stored(self) -> bool:
        """Whether products read K from memory; otherwise every product evaluates the kernel again."""
        return self.memory >= 8.0 * self.samples.N**2

    @cached_property
    def dense(self) -> Array:
        """K, [N, N]; do not write to it."""
        N, x = self.samples.N, self.samples.x
        K = np.empty((N, N))
        for start in range(0, N, TILE):
            rows = slice(start, start + TILE)
            # One half is computed, the other mirrored.
            K[rows, start:] = self.kernel(x[rows], x[start:])
            K[rows, start:] /= N
            K[start + TILE :, rows] = K[rows, start + TILE :].T
        if not np.isfinite(K).all():
            raise InputError("the kernel is not finite at some pair of points; rescale the data.")
        return K

    def matmul(self, vector: Array) -> Array:
        """K times [N] or [N, k]."""
        if self.stored and vector.ndim == 1:
            # Reads half of the matrix, which is what a product with a vector spends its time on.
            return np.asarray(dsymv(1.0, self.dense.T, vector, lower=1), dtype=np.float64)
        if self.stored:
            return np.asarray(self.dense @ vector, dtype=np.float64)
        return cross_product(self.kernel, self.samples.x, self.samples.x, vector)


def cross_product(kernel: Kernel, at: Array, points: Array, coefficients: Array) -> Array:
    """(1 / N) sum_j c_j k(x, x_j) at every x in `at`, without the whole matrix."""
    result = np.empty((len(at), *coefficients.shape[1:]))
    for rows in chunks(len(at), len(points)):
        result[rows] = kernel(at[rows], points) @ coefficients
    return np.asarray(result / len(points), dtype=np.float64)


def chunks(rows: int, columns: int) -> list[slice]:
    """Slices of `rows` such that a float64 matrix of one slice by `columns` stays within CHUNK_BYTES."""
    size = max(1, int(CHUNK_BYTES / (8 * columns)))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]

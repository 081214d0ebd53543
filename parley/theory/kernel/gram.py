"""The normalised kernel matrix K = [k(x_i, x_j) / N] as something to multiply with, stored or computed on the fly."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parley.theory.kernel.kernels import Kernel
from parley.theory.kernel.points import Samples
from parley.theory.theta import Array

CHUNK_BYTES = 2**28
"""Working memory of products with parts of K that are not stored."""


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
        N = self.samples.N
        K = np.empty((N, N))
        for rows in chunks(N, N):
            K[rows] = self.kernel(self.samples.x[rows], self.samples.x)
        K /= N
        return K

    def matmul(self, vector: Array) -> Array:
        """K times [N] or [N, k]."""
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

"""FedAvg and FedProx on a model with d features, f(x) = <theta, phi(x)>, at a cost linear in the number of samples.

With A_i = Phi_i' Phi_i / n_i and b_i = Phi_i' y_i / n_i one round of Su et al. is

    theta <- theta - eta sum_i w_i P_i (A_i theta - b_i),    P_i = sum_{tau < s} (I - eta A_i)^tau or (I + eta A_i)^-1,

an affine map in d dimensions: theta <- theta - eta (G theta - g). Clients are read one after the other; only d x d sums
are kept. The eigenvalues of G are the non-zero ones of K P.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError
from parley.theory.arguments import check_sizes
from parley.theory.kernel.blocks import psd_eigh, rounding
from parley.theory.kernel.decay import as_rounds, gathered, kept
from parley.theory.kernel.features import FeatureMap
from parley.theory.kernel.methods import KernelStep
from parley.theory.kernel.points import as_numbers, as_points, check_finite
from parley.theory.kernel.spectrum import Spectrum
from parley.theory.theta import Array


@dataclass(frozen=True, eq=False)
class FeatureSpace:
    """The sums over clients that govern theta_t; build it with `FeatureSpace.of`.

    Targets may have k columns (other noise draws, the clients' truths): then `drive`, theta_t and the limit are [d, k].
    """

    method: KernelStep
    sizes: tuple[int, ...] = field(repr=False)
    update: Array = field(repr=False)
    """G = sum_i w_i P_i A_i, [d, d]."""
    covariance: Array = field(repr=False)
    """sum_i w_i A_i = Phi' Phi / N, [d, d]."""
    noise: Array = field(repr=False)
    """sum_i w_i P_i^2 A_i, [d, d]: g has the covariance sigma^2 / N times it."""
    drive: Array = field(repr=False)
    """g = sum_i w_i P_i b_i, [d] or [d, k]."""
    gamma: float

    @classmethod
    def of(
        cls,
        phi: FeatureMap,
        clients: Iterable[npt.ArrayLike],
        targets: Iterable[npt.ArrayLike],
        method: KernelStep,
    ) -> "FeatureSpace":
        """From x_i [n_i, p] and y_i [n_i] or [n_i, k] of each client; both may be generators."""
        sums: list[Array] | None = None
        sizes: list[int] = []
        largest = 0.0
        for number, (x, y) in enumerate(_pairs(clients, targets)):
            features = phi(as_points(x, f"client {number}'s data"))
            values = as_numbers(y, f"client {number}'s targets")
            if values.ndim not in (1, 2) or len(values) != len(features):
                raise InputError(f"client {number} has {len(features)} samples but targets of shape {values.shape}.")
            check_finite(values, f"client {number}'s targets")
            check_finite(features, f"the features of client {number}")
            norm, terms = _present(features, values, method, number)
            largest = max(largest, norm)
            sizes.append(len(features))
            if sums is None:
                sums = terms
            else:
                if any(total.shape != term.shape for total, term in zip(sums, terms, strict=True)):
                    raise InputError(
                        f"client {number} has another number of features or target columns than the first."
                    )
                for total, term in zip(sums, terms, strict=True):
                    total += term
        if sums is None:
            raise InputError("a federation needs at least one client.")
        update, covariance, noise, drive = (total / sum(sizes) for total in sums)
        return cls(method, tuple(sizes), update, covariance, noise, drive, method.eta * largest)

    @property
    def N(self) -> int:
        return sum(self.sizes)

    @property
    def kappa(self) -> float:
        """Eq. (14)."""
        return self.method.kappa(self.gamma)

    @cached_property
    def spectrum(self) -> Spectrum:
        """The min(d, N) largest eigenvalues of K and K P; any others are zero."""
        count = min(len(self.update), self.N)
        kernel = np.maximum(np.linalg.eigvalsh(self.covariance), 0.0)[::-1][:count]
        return Spectrum(self.method, self.N, kernel, self._eigen[0][::-1][:count], self.gamma)

    @cached_property
    def rho(self) -> float:
        """rho_N of Theorem 12: the least eigenvalue of Phi' Phi / N; 0 if it is below rounding error."""
        values = np.asarray(np.linalg.eigvalsh(self.covariance), dtype=np.float64)
        return float(values[0]) if values[0] > rounding(values) else 0.0

    def theta(self, t: int, start: npt.ArrayLike | None = None) -> Array:
        """theta_t from theta_0 = `start` (default 0), in closed form for any t; predictions are phi(x) @ theta_t."""
        if as_rounds(t).ndim:
            raise InputError("theta takes one round at a time.")
        values, vectors = self._eigen
        steps = np.minimum(self.method.eta * values, 1.0)
        # Where no data reach, the drive is zero too; its rounding error would grow with t.
        sums = np.where(values > 0, self.method.eta * gathered(steps, t), 0.0)
        fitted = vectors @ _rows(sums, vectors.T @ self.drive)
        if start is None:
            return np.asarray(fitted, dtype=np.float64)
        initial = self._start(start)
        return np.asarray(fitted + vectors @ _rows(kept(steps, t), vectors.T @ initial), dtype=np.float64)

    def limit(self, start: npt.ArrayLike | None = None) -> Array:
        """theta_t as t -> infinity; directions no client's data reach keep theta_0."""
        values, vectors = self._eigen
        reached = values > 0
        inverse = np.where(reached, 1 / np.where(reached, values, 1.0), 0.0)
        result = vectors @ _rows(inverse, vectors.T @ self.drive)
        if start is not None:
            result = result + vectors @ _rows((~reached).astype(np.float64), vectors.T @ self._start(start))
        return np.asarray(result, dtype=np.float64)

    def step(self, theta: npt.ArrayLike) -> Array:
        """One round."""
        start = np.asarray(theta, dtype=np.float64)
        return np.asarray(start - self.method.eta * (self.update @ start - self.drive), dtype=np.float64)

    def variance(self, t: npt.ArrayLike, sigma: float) -> Array:
        """E ||theta_t - E theta_t||^2 for independent noise of variance sigma^2; a round or a list of T rounds."""
        check_sizes(sigma=sigma)
        values, vectors = self._eigen
        spread = np.einsum("ij,ik,kj->j", vectors, self.noise, vectors, optimize=True)
        sums = self.method.eta * gathered(np.minimum(self.method.eta * values, 1.0)[:, None], as_rounds(t))
        result = sigma**2 / self.N * (spread @ sums**2)
        return np.asarray(result if np.ndim(t) else result[0], dtype=np.float64)

    def limit_variance(self, sigma: float) -> float:
        """The same as t -> infinity."""
        values, vectors = self._eigen
        reached = values > 0
        spread = np.einsum("ij,ik,kj->j", vectors, self.noise, vectors, optimize=True)
        return float(sigma**2 / self.N * (spread[reached] / values[reached] ** 2).sum())

    @cached_property
    def _eigen(self) -> tuple[Array, Array]:
        """G's eigenvalues, zero where they are rounding error, and its eigenvectors."""
        values, vectors = psd_eigh(self.update, "the update matrix")
        return np.where(values > rounding(values), values, 0.0), vectors

    def _start(self, start: npt.ArrayLike) -> Array:
        initial = np.asarray(start, dtype=np.float64)
        if initial.shape[:1] != self.drive.shape[:1] or not np.isfinite(initial).all():
            raise InputError(f"theta_0 must be {len(self.drive)} finite numbers, not of shape {initial.shape}.")
        return initial[:, None] if initial.ndim < self.drive.ndim else initial


def _pairs(
    clients: Iterable[npt.ArrayLike], targets: Iterable[npt.ArrayLike]
) -> Iterator[tuple[npt.ArrayLike, npt.ArrayLike]]:
    """Each client's points and targets; both may be generators, so unequal lengths show only at the end."""
    for x, y in zip_longest(clients, targets):
        if x is None or y is None:
            raise InputError("give one target array per client; one of the two lists is longer.")
        yield x, y


def _present(features: Array, values: Array, method: KernelStep, number: int) -> tuple[float, list[Array]]:
    """The client's terms, from the features it has: those that are zero in all its samples cost nothing."""
    present = np.flatnonzero(features.any(axis=0))
    d = features.shape[1]
    if len(present) == d or not len(present):
        return _client(features, values, method, number)
    norm, terms = _client(features[:, present], values, method, number)
    full = [np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, *values.shape[1:]))]
    for matrix, term in zip(full[:3], terms[:3], strict=True):
        matrix[np.ix_(present, present)] = term
    full[3][present] = terms[3]
    return norm, full


def _client(features: Array, values: Array, method: KernelStep, number: int) -> tuple[float, list[Array]]:
    """||A_i|| and n_i times the client's terms of (G, covariance, noise, g), through the smaller of A_i and K_i."""
    n, d = features.shape
    what = f"the feature covariance of client {number}"
    if n >= d:
        eigenvalues, vectors = psd_eigh(features.T @ features / n, what)
        method.check(method.eta * float(eigenvalues[-1]))
        multiplier = method.multiplier(eigenvalues)
        scaled = [(vectors * (eigenvalues * multiplier**power)) @ vectors.T for power in (1, 0, 2)]
        return float(eigenvalues[-1]), [
            *(n * matrix for matrix in scaled),
            vectors @ _rows(multiplier, vectors.T @ (features.T @ values)),
        ]
    eigenvalues, vectors = psd_eigh(features @ features.T / n, what)
    method.check(method.eta * float(eigenvalues[-1]))
    multiplier = method.multiplier(eigenvalues)
    rotated = vectors.T @ features
    return float(eigenvalues[-1]), [
        *((rotated.T * multiplier**power) @ rotated for power in (1, 0, 2)),
        rotated.T @ _rows(multiplier, vectors.T @ values),
    ]


def _rows(factors: Array, matrix: Array) -> Array:
    """Scales the rows of [d] or [d, k]."""
    return np.asarray(factors * matrix if matrix.ndim == 1 else factors[:, None] * matrix, dtype=np.float64)


def gradient_dissimilarity(designs: Sequence[npt.ArrayLike]) -> float:
    """The least B with mean_i ||grad l_i||^2 <= B^2 ||mean_i grad l_i||^2 for all theta, noiseless and homogeneous.

    Section 2: with one Gaussian sample a client it is of order sqrt(d), although FedAvg does not suffer. `designs` are
    feature matrices [n_i, d]; directions that no client reaches do not count.
    """
    if not len(designs):
        raise InputError("a federation needs at least one client.")
    points = [as_points(x, f"client {number}'s design") for number, x in enumerate(designs)]
    if len({x.shape[1] for x in points}) > 1 or not any(x.any() for x in points):
        raise InputError("all designs need the same number of columns, and one of them an entry that is not zero.")
    covariances = np.stack([x.T @ x / len(x) for x in points])
    mean, second = covariances.mean(axis=0), (covariances @ covariances).mean(axis=0)
    values, vectors = psd_eigh(mean, "the mean covariance")
    reached = values > rounding(values)
    # Outside of the mean's range every A_i vanishes too, because all are positive semidefinite.
    basis = vectors[:, reached] / values[reached]
    return float(np.sqrt(np.linalg.eigvalsh(basis.T @ second @ basis)[-1]))

"""Eigenvalues of K and K P with the constants that the bounds need (Su et al., Lemmas 4 and 5)."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigvalsh

from parley.core.errors import InputError
from parley.theory.kernel.basis import Basis, symmetric_form
from parley.theory.kernel.blocks import rounding
from parley.theory.kernel.decay import as_rounds, kept, learned
from parley.theory.kernel.federation import KernelFederation
from parley.theory.kernel.methods import KernelStep
from parley.theory.kernel.stopping import Stop, stopping_round
from parley.theory.theta import Array


@dataclass(frozen=True, eq=False)
class Spectrum:
    """lambda_i of K and Lambda_i of K P, descending; those left out or within rounding error of zero are zero."""

    method: KernelStep
    N: int
    kernel: Array = field(repr=False)
    """lambda_i."""
    update: Array = field(repr=False)
    """Lambda_i, as many as lambda_i."""
    gamma: float

    def __post_init__(self) -> None:
        if self.kernel.shape != self.update.shape or not 0 < len(self.kernel) <= self.N:
            raise InputError("a spectrum needs equally many eigenvalues of K and K P, at most N.")
        if not (np.isfinite(self.kernel).all() and np.isfinite(self.update).all()):
            raise InputError("a spectrum needs finite eigenvalues.")
        self.method.check(self.gamma)
        for name in ("kernel", "update"):
            values = getattr(self, name)
            object.__setattr__(self, name, np.where(values > rounding(values), values, 0.0))

    @property
    def kappa(self) -> float:
        """Eq. (14)."""
        return self.method.kappa(self.gamma)

    @property
    def rank(self) -> int:
        """The numerical rank of K."""
        return int((self.kernel > 0).sum())

    def stop(self, sigma: float, norm: float = 1.0) -> Stop:
        """The stopping rule (23) for noise of size sigma and an assumed ||f_0 - f*||_H."""
        return stopping_round(self.kernel, self.N, self.method, sigma, norm)

    def bias(self, t: npt.ArrayLike) -> Array:
        """delta_1(t) of (19): the worst case of the bias for ||f_0 - f||_H = 1, up to kappa."""
        decayed = kept(self._steps(), 2 * as_rounds(t)) * self.update[:, None]
        return _like(t, decayed.max(axis=0) / self.method.s)

    def variance(self, t: npt.ArrayLike) -> Array:
        """delta_2(t) of (20): the mean squared share of the noise that is fitted, up to kappa."""
        return _like(t, (learned(self._steps(), as_rounds(t)) ** 2).sum(axis=0) / self.N)

    def _steps(self) -> Array:
        return np.minimum(self.method.eta * self.update, 1.0)[:, None]


def exact_spectrum(federation: KernelFederation) -> Spectrum:
    """All N eigenvalues of both matrices; N^3 time."""
    kernel = np.maximum(eigvalsh(federation.gram.dense, check_finite=False), 0.0)[::-1].copy()
    update = np.maximum(eigvalsh(symmetric_form(federation), overwrite_a=True, check_finite=False), 0.0)[::-1].copy()
    return Spectrum(federation.method, federation.samples.N, kernel, update, federation.gamma)


def basis_spectrum(federation: KernelFederation, basis: Basis) -> Spectrum:
    """The spectrum from an exact or low-rank basis, without another N^3: K = V Lambda V' with V = P^-1/2 U."""
    roots = federation.blocks.apply(basis.vectors, -0.5) * np.sqrt(basis.values)
    singular = np.linalg.svd(np.linalg.qr(roots, mode="r"), compute_uv=False)
    return Spectrum(federation.method, federation.samples.N, singular**2, basis.values, federation.gamma)


def _like(t: npt.ArrayLike, values: Array) -> Array:
    return np.asarray(values if np.ndim(t) else values[0], dtype=np.float64)

"""What 000/stopping stops: kernels whose eigenvalues decay like i^(-2 beta), and truths of norm 1 in their spaces.

A truth is f* = sum_l a_l l^-beta sqrt(2) cos(pi l x) with a random a of length 1, so ||f*||_H = 1. How a spreads over
the frequencies is what the rule cannot know; `LAWS` holds the ways that are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.special import xlog1py

import parley as pl
from parley_papers.arrays import Array
from parley_papers.su2023.setting import SIGMA

TERMS = 2000
ORDER = np.arange(1.0, TERMS + 1)
CLIENTS = 6


@dataclass(frozen=True)
class Law:
    """How the coefficients a_l of a truth are drawn; they are scaled to length 1 afterwards."""

    spread: Callable[[float, int], Array]
    """Their order of size, [TERMS], for beta and N."""
    signs: bool = False
    """Random signs only; otherwise normal factors, with which the few coefficients that matter may come out tiny."""

    def draw(self, beta: float, N: int, draws: int) -> Array:
        """[draws, TERMS], from the same random numbers for every beta and N."""
        rng = pl.Key(0).fold("000/stopping").fold("truths").numpy()
        factors = rng.standard_normal((draws, TERMS))
        a = (np.sign(factors) if self.signs else factors) * self.spread(beta, N)
        return np.asarray(a / np.linalg.norm(a, axis=1, keepdims=True), dtype=np.float64)


def _power(exponent: float) -> Callable[[float, int], Array]:
    return lambda beta, N: np.asarray(ORDER**-exponent, dtype=np.float64)


def _learnable(beta: float, N: int) -> Array:
    """Alike on the frequencies with eigenvalues above the squared critical radius: where minimax lower bounds live."""
    eigenvalues = ORDER ** (-2 * beta)
    return np.where(eigenvalues >= pl.theory.kernel.critical_radius(eigenvalues, N, SIGMA) ** 2, 1.0, 0.0)


LAWS = {
    # i^-0.6 is about as rough as one function in H can be: sum i^-1.2 converges, sum i^-1 (the edge) does not.
    "rough": Law(_power(0.6), signs=True),
    "rough, Gaussian": Law(_power(0.6)),
    "hardest at each N": Law(_learnable),
    "edge of H": Law(_power(0.5)),
    "i^-1": Law(_power(1.0)),
    "smooth, i^-1.5": Law(_power(1.5)),
    # Norm 1 but hardly any size; no rule that knows the norm alone can see that.
    "white to N": Law(lambda beta, N: np.where(N >= ORDER, 1.0, 0.0)),
}


class StoppableModel(Protocol):
    """A problem whose expected error is known exactly."""

    def stop(self, norm: float = 1.0) -> int:
        """T of the rule (23)."""

    def errors(self, truths: Array, rounds: Array) -> Array:
        """E ||f_t - f*||_N^2 of truths with coefficients [draws, TERMS], [draws, rounds]."""


def cosines(x: Array, beta: float) -> Array:
    """l^-beta sqrt(2) cos(pi l x), [n, TERMS]: for uniform points their kernel has eigenvalues l^(-2 beta)."""
    return np.asarray(np.sqrt(2) * np.cos(np.pi * np.outer(x, ORDER)) * ORDER**-beta, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Intervals:
    """FedAvg with s = 3 on uniform points, cut into intervals of random sizes, one for each client."""

    federation: pl.theory.kernel.KernelFederation
    features: Array
    eigenvalues: Array
    basis: pl.theory.kernel.Basis

    @classmethod
    def draw(cls, beta: float, N: int) -> Intervals:
        rng = pl.Key(0).fold("000/stopping").fold(N).numpy()
        features = cosines(np.sort(rng.uniform(0, 1, N)), beta)
        gram = features @ features.T
        rows = np.split(np.arange(N), np.sort(rng.choice(np.arange(1, N), CLIENTS - 1, replace=False)))
        largest = max(float(np.linalg.norm(gram[np.ix_(part, part)], 2)) / len(part) for part in rows)
        federation = pl.theory.kernel.KernelFederation.of(
            pl.theory.kernel.Precomputed(gram), rows, pl.theory.kernel.GradientSteps(0.1 / largest, 3)
        )
        return cls(federation, features, np.linalg.eigvalsh(gram / N).clip(0), pl.theory.kernel.exact_basis(federation))

    def stop(self, norm: float = 1.0) -> int:
        return pl.theory.kernel.stopping_round(
            self.eigenvalues, len(self.features), self.federation.method, SIGMA, norm
        ).T

    def errors(self, truths: Array, rounds: Array) -> Array:
        values = truths @ self.features.T
        biases = [
            pl.theory.kernel.expected_error(self.federation, f, 0.0, basis=self.basis).bias(rounds) for f in values
        ]
        return np.asarray(self._noise.variance(rounds) + np.stack(biases), dtype=np.float64)

    @cached_property
    def _noise(self) -> pl.theory.kernel.ExpectedError:
        return pl.theory.kernel.expected_error(self.federation, np.zeros(len(self.features)), SIGMA, basis=self.basis)


@dataclass(frozen=True)
class Ideal:
    """Points so even that K has the kernel's own eigenvalues and eigenvectors, one local step: any N costs the same."""

    beta: float
    N: int
    method = pl.theory.kernel.GradientSteps(0.1)

    @cached_property
    def _spectrum(self) -> pl.theory.kernel.Spectrum:
        eigenvalues = ORDER[: self.N] ** (-2 * self.beta)
        return pl.theory.kernel.Spectrum(self.method, self.N, eigenvalues, eigenvalues, self.method.eta)

    def stop(self, norm: float = 1.0) -> int:
        return pl.theory.kernel.stopping_round(self._spectrum.kernel, self.N, self.method, SIGMA, norm).T

    def errors(self, truths: Array, rounds: Array) -> Array:
        eigenvalues = self._spectrum.kernel
        left = eigenvalues[:, None] * np.exp(xlog1py(2 * rounds, -self.method.eta * eigenvalues[:, None]))
        bias = truths[:, : len(eigenvalues)] ** 2 @ left
        return np.asarray(bias + SIGMA**2 * self._spectrum.variance(rounds), dtype=np.float64)

"""What the linear experiments of paper 000 share: the four methods, Gaussian designs, noise (Section 7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import parley as pl
from parley_papers.arrays import Array

ETA, SIGMA, D = 0.1, 0.5, 100
SCARCE_AND_RICH = (50,) * 10 + (500,) * 10
"""n_i of Figures 4 and 5: ten data-scarce clients, then ten data-rich ones."""


def methods(eta: float = ETA) -> dict[str, pl.theory.kernel.KernelStep]:
    """The curves of every figure."""
    return {
        "FedAvg, s = 1": pl.theory.kernel.GradientSteps(eta, 1),
        "FedAvg, s = 5": pl.theory.kernel.GradientSteps(eta, 5),
        "FedAvg, s = 10": pl.theory.kernel.GradientSteps(eta, 10),
        "FedProx": pl.theory.kernel.ProximalStep(eta),
    }


def gaussian_designs(rng: np.random.Generator, sizes: Sequence[int], d: int = D) -> list[Array]:
    """X_i [n_i, d] with independent N(0, 1) entries."""
    return [rng.standard_normal((n, d)) for n in sizes]


def noise(rng: np.random.Generator, sizes: Sequence[int]) -> list[Array]:
    """xi_i ~ N(0, sigma^2 I)."""
    return [SIGMA * rng.standard_normal(n) for n in sizes]

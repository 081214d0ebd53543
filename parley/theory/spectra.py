"""Random Hessians for simulated frontiers (paper 001, Appendix D.1)."""

import numpy as np

from parley.core.errors import InputError
from parley.theory.region import check_curvature
from parley.theory.theta import Array


def wishart_spectrum(dimension: int, L: float, mu: float, rng: np.random.Generator) -> Array:
    """The ascending eigenvalues of beta_1 B'B + beta_2 I, B standard normal, scaled to reach from mu to L exactly."""
    check_curvature(L, mu)
    if dimension < 2:
        raise InputError(f"a spectrum from mu to L needs dimension >= 2, not {dimension}.")
    raw = np.linalg.svd(rng.standard_normal((dimension, dimension)), compute_uv=False)[::-1] ** 2
    share = (raw - raw[0]) / (raw[-1] - raw[0])
    return np.asarray(mu + (L - mu) * share, dtype=np.float64)

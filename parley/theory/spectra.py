"""Random quadratics: Hessians for frontiers (Charles and Konečný, Appendix D.1) and federations to try advice on."""

import numpy as np
from scipy.linalg import expm

from parley.core.errors import InputError
from parley.theory.arguments import LARGEST, check_whole
from parley.theory.quadratics import Quadratics
from parley.theory.region import check_curvature
from parley.theory.theta import Array

__all__ = ["random_clients", "wishart_spectrum"]


def wishart_spectrum(dimension: int, L: float, mu: float, rng: np.random.Generator) -> Array:
    """The ascending eigenvalues of beta_1 B'B + beta_2 I, B standard normal, scaled to reach from mu to L exactly."""
    check_curvature(L, mu)
    check_whole("the dimension of a spectrum from mu to L", dimension, 2)
    raw = np.linalg.svd(rng.standard_normal((dimension, dimension)), compute_uv=False)[::-1] ** 2
    share = (raw - raw[0]) / (raw[-1] - raw[0])
    return np.asarray(mu + (L - mu) * share, dtype=np.float64)


def random_clients(
    dimension: int, clients: int, kappa0: float, rng: np.random.Generator, rotation: float = 0.1, jitter: float = 0.2
) -> Quadratics:
    """Clients with related Hessians, spectra in [1, kappa0], and optima uniform in the unit ball.

    All share one log-uniform spectrum and one eigenbasis, up to a factor kappa0^U(-jitter, jitter) per eigenvalue and a
    random rotation of about `rotation` radians; `rotation=numpy.inf` draws every eigenbasis and spectrum afresh.
    """
    check_whole("the dimension", dimension)
    check_whole("the number of clients", clients)
    if not 1 <= kappa0 <= LARGEST or not 0 <= jitter <= 1 or not (np.isinf(rotation) or abs(rotation) <= LARGEST):
        raise InputError(
            f"random clients need 1 <= kappa0 <= {LARGEST:g}, a jitter from 0 to 1 and a rotation, not kappa0 = "
            f"{kappa0:g}, jitter = {jitter:g} and rotation = {rotation:g}."
        )
    if np.isinf(rotation):
        eigenvalues = np.exp(rng.uniform(0, np.log(kappa0), (clients, dimension)))
        bases = np.stack([_orthogonal(dimension, rng) for _ in range(clients)])
    else:
        common = np.exp(rng.uniform(0, np.log(kappa0), dimension))
        common[0], common[-1] = 1.0, kappa0
        eigenvalues = np.clip(common * kappa0 ** rng.uniform(-jitter, jitter, (clients, dimension)), 1, kappa0)
        normal = rng.standard_normal((clients, dimension, dimension))
        turns = (normal - np.swapaxes(normal, 1, 2)) * rotation / np.sqrt(2 * dimension)
        bases = _orthogonal(dimension, rng) @ np.stack([expm(turn) for turn in turns])
    optima = rng.standard_normal((clients, dimension))
    optima *= rng.uniform(size=(clients, 1)) ** (1 / dimension) / np.linalg.norm(optima, axis=1, keepdims=True)
    return Quadratics((bases * eigenvalues[:, None, :]) @ np.swapaxes(bases, 1, 2), optima)


def _orthogonal(dimension: int, rng: np.random.Generator) -> Array:
    return np.asarray(np.linalg.qr(rng.standard_normal((dimension, dimension)))[0], dtype=np.float64)

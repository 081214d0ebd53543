"""Where local update methods have a strongly convex surrogate (Charles and Konečný, Assumption 1 and Lemma 1)."""

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError


def check_curvature(L: float, mu: float) -> None:
    """Refuse anything but 0 < mu <= L < infinity with a finite L / mu."""
    if not mu > 0:
        raise InputError(
            f"strong convexity must satisfy mu > 0, but mu = {mu:g}; add a ridge term or drop flat directions."
        )
    if not (np.isfinite(L) and mu <= L):
        raise InputError(f"smoothness must satisfy mu <= L < infinity, but L = {L:g} and mu = {mu:g}.")
    if not np.isfinite(float(L) / float(mu)):
        raise InputError(f"the condition number L / mu must be finite, but L = {L:g} and mu = {mu:g}.")


def check_counts(K: npt.ArrayLike) -> None:
    """Refuse anything but 1 <= K < infinity, elementwise; K may be real."""
    counts = np.asarray(K, dtype=np.float64)
    if not (np.isfinite(counts) & (counts >= 1)).all():
        raise InputError("the number of local steps must satisfy 1 <= K < infinity.")


def check_step(gamma: npt.ArrayLike, alpha: npt.ArrayLike, L: float) -> None:
    """Refuse negative values and any gamma >= 1/(L + alpha); arrays are checked elementwise."""
    gammas, alphas = np.broadcast_arrays(np.asarray(gamma, dtype=np.float64), np.asarray(alpha, dtype=np.float64))
    if not (np.isfinite(alphas).all() and (alphas >= 0).all()):
        raise InputError("the proximal strength must satisfy 0 <= alpha < infinity; give such an alpha.")
    if not (np.isfinite(gammas).all() and (gammas >= 0).all()):
        raise InputError("the client step must satisfy 0 <= gamma < 1/(L + alpha); give a non-negative finite gamma.")
    outside = gammas * (L + alphas) >= 1
    if outside.any():
        worst, strength = float(gammas[outside].flat[0]), float(alphas[outside].flat[0])
        raise InputError(
            f"the client step must satisfy gamma < 1/(L + alpha) = {1 / (L + strength):g}, but gamma = {worst:g}; "
            "take a smaller gamma."
        )


def check_last_step(gamma: npt.ArrayLike, alpha: npt.ArrayLike, L: float, K: npt.ArrayLike) -> None:
    """Refuse gamma >= 1/(K L + alpha), the condition of Lemma 4 for Theta_K."""
    check_step(gamma, alpha, L)
    limit = 1 / (np.asarray(K, dtype=np.float64) * L + np.asarray(alpha, dtype=np.float64))
    outside = np.broadcast_to(np.asarray(gamma) >= limit, np.broadcast_shapes(np.shape(gamma), np.shape(limit)))
    if outside.any():
        raise InputError(
            "the bound (13) for Theta_K needs gamma < 1/(K L + alpha); take a smaller gamma or K, or give A's spectrum."
        )

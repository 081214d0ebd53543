"""Fixed points in NumPy, from the definitions, independent of the training code.

On quadratics every method is an affine map z -> T z + b of what it remembers; its fixed point solves (I - T) z = b.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from parley.theory.surrogate import Quadratics
from parley.theory.theta import Array

__all__ = ["affine_fixed_point", "fedals_point", "fednova_point", "heavy_ball"]


def affine_fixed_point(step: Callable[[Array], Array], dimension: int) -> Array:
    """z with step(z) = z, for an affine `step`."""
    offset = step(np.zeros(dimension))
    T = np.stack([step(unit) - offset for unit in np.eye(dimension)], axis=1)
    return np.asarray(np.linalg.solve(np.eye(dimension) - T, offset), dtype=np.float64)


def heavy_ball(A: Array, c: Array, x: Array, v: Array, lr: float, steps: int, beta: float) -> tuple[Array, Array]:
    """`steps` of heavy-ball gradient descent on 1/2 (x - c)' A (x - c), from x and the velocity v."""
    for _ in range(steps):
        v = beta * v + A @ (x - c)
        x = x - lr * v
    return x, v


def fednova_point(clients: Quadratics, lr: float, steps: Sequence[int], beta: float = 0.0) -> Array:
    """The fixed point of x <- x - sum_i p_i d_i / a_i, with unequal steps and momentum that starts afresh, [d]."""

    def step(x: Array) -> Array:
        total = x.copy()
        for A, c, p, K in zip(clients.A, clients.c, clients.p, steps, strict=True):
            a = sum((1 - beta ** (K - k)) / (1 - beta) for k in range(K))
            total -= p * (x - heavy_ball(A, c, x, np.zeros_like(x), lr, K, beta)[0]) / a
        return total

    return affine_fixed_point(step, clients.c.shape[1])


def fedals_point(clients: Quadratics, lr: float, tau: int, alpha: int, phi: int, beta: float = 0.0) -> Array:
    """FedALS right after a phi average, with velocities that run through, [d]: phi the first coordinates.

    The state between two phi averages is the common model and every client's velocity.
    """
    m, d = clients.c.shape

    def phase(state: Array) -> Array:
        common, velocities = state[:d], state[d:].reshape(m, d).copy()
        models = np.tile(common, (m, 1))
        for _ in range(alpha):
            for i in range(m):
                models[i], velocities[i] = heavy_ball(
                    clients.A[i], clients.c[i], models[i], velocities[i], lr, tau, beta
                )
            models[:, phi:] = clients.p @ models[:, phi:]
        return np.concatenate([clients.p @ models, velocities.ravel()])

    return affine_fixed_point(phase, d + m * d)[:d]

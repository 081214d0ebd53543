"""Functional gradient boosting over clients on finitely many inputs (Shen et al.): Algorithms 1 to 3 and bounds.

Functions are arrays over the inputs [m, c]; client i weighs them by alpha_i [m]. A client's gradient and an oracle's
answer are functions on all inputs too, whatever the client has seen of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from parley.theory.theta import Array

__all__ = [
    "Gradient",
    "Iterates",
    "Oracle",
    "Steps",
    "bias_without_residual",
    "boost",
    "cross_entropy_optimum",
    "decreasing",
    "function_bound",
    "gradient_bound",
    "learner_bound",
    "lipschitz_extension",
    "norms",
    "residual_bound",
    "softmax",
    "square_optimum",
    "support_distance",
    "total_variation_radius",
    "wasserstein",
    "wasserstein_radius",
]

Gradient = Callable[[Array], Array]
"""g [N, m, c], a function per client -> grad R_i[g_i], 0 where a client has no mass."""
Oracle = Callable[[Array, Array], Array]
"""(phi, g) [N, m, c] -> h [N, m, c] that stands for phi; g is the known part that a Lipschitz oracle leaves alone."""
Steps = Callable[[int, int], float]
"""(t, k), t from 0 and k from 1 -> eta^{k,t}."""


@dataclass(frozen=True)
class Iterates:
    """What happened, round by round; norms are over each client's own inputs and steps, the largest of them."""

    functions: Array
    """[T + 1, m, c]."""
    gradient: float
    """G: the largest ||grad R_i[g]||."""
    gamma: float
    """The least that any answer achieved."""
    residual: float
    learner: float
    function: float

    def errors(self, optimum: Array, alpha: Array) -> Array:
        """||f^t - f*||^2 under the mean of the clients' inputs, [T + 1]."""
        squares = ((self.functions - optimum) ** 2).sum(-1)
        return np.asarray(squares @ alpha.mean(0))


def boost(
    alpha: Array,
    gradient: Gradient,
    oracle: Oracle,
    *,
    rounds: int,
    local: int,
    mu: float,
    steps: Steps,
    outputs: int,
    residual: bool = True,
    largest: bool = False,
) -> Iterates:
    """Algorithm 1 with all clients from f = 0; `largest`: norms are L-infinity's instead of L2's."""
    count, inputs = alpha.shape
    f = np.zeros((inputs, outputs))
    functions, seen = [f], np.array([0.0, np.inf, 0.0, 0.0, 0.0])
    for t in range(rounds):
        g = np.broadcast_to(f, (count, inputs, outputs))
        delta = np.zeros_like(g)
        for k in range(1, local + 1):
            here = gradient(g)
            phi = delta + here
            h = oracle(phi, g)
            g_norm, phi_norm, miss, h_norm, f_norm = (
                norms(part, alpha, largest) for part in (here, phi, phi - h, h, g)
            )
            gamma = (1 - np.divide(miss, phi_norm, out=np.zeros_like(miss), where=phi_norm > 1e-300)).min()
            high = np.array([g_norm.max(), -gamma, miss.max(), h_norm.max(), f_norm.max()])
            seen = np.maximum(np.where(np.isinf(seen), -np.inf, seen), high)
            g = g - steps(t, k) * (h + mu * g)
            delta = phi - h if residual else delta
        f = g.mean(0)
        functions.append(f)
    return Iterates(np.array(functions), seen[0], -seen[1], seen[2], seen[3], seen[4])


def decreasing(numerator: float, mu: float, local: int) -> Steps:
    """eta^{k,t} = numerator / (mu (t K + k + 1)), 2 in Theorem 4.3 and 4 in 4.1 and 4.4; mu eta at most 1."""
    return lambda t, k: min(numerator / (mu * (t * local + k + 1)), 1 / mu)


def norms(values: Array, alpha: Array, largest: bool) -> Array:
    """||values_i|| under alpha_i, of every client, [N]."""
    each = np.linalg.norm(values, axis=-1)
    if largest:
        return np.asarray(np.where(alpha > 0, each, 0.0).max(1))
    return np.asarray(np.sqrt((alpha * each**2).sum(1)))


# --- bounds on what a round makes of gradients of at most G ---


def residual_bound(G: float, gamma: float) -> float:
    """(24): ||Delta|| <= (1 - gamma)/gamma G."""
    return (1 - gamma) / gamma * G


def learner_bound(G: float, gamma: float) -> float:
    """(25): ||h|| <= (2 - gamma)/gamma G."""
    return (2 - gamma) / gamma * G


def function_bound(G: float, gamma: float, mu: float) -> float:
    """Lemma D.1: ||g|| <= 2 G / (gamma mu), where mu eta <= 1."""
    return 2 * G / (gamma * mu)


def bias_without_residual(gamma: float, mu: float) -> float:
    """The multiple of the mean label by which f misses f* for square loss and h = gamma phi, conflict or not."""
    return gamma / (gamma + mu) - 1 / (1 + mu)


# --- the radii of Table 1, without their constants ---


def total_variation_radius(G: float, omega: float, mu: float, gamma: float) -> float:
    """Theorem 4.1 as restated (D.1): G^2 omega_TV / (mu^2 gamma^2)."""
    return G**2 * omega / (mu * gamma) ** 2


def wasserstein_radius(L: float, D: float, B: float, omega: float, gamma: float, mu: float = 1.0) -> float:
    """Theorem 4.4: L (L D + B) omega_W1 / (gamma^2 mu), mu = 1 being the square loss's own convexity."""
    return L * (L * D + B) * omega / (gamma**2 * mu)


def gradient_bound(points: list[Array], L: float, B: float) -> float:
    """G of Theorem 4.4: G^2 = 2 L^2 / N^2 sum_{i,s} W_2^2(alpha_s, alpha_i) + 2 B^2, of clients with equally many
    points [n, d]."""
    squares = [wasserstein(a, b, 2) ** 2 for a in points for b in points]
    return float(np.sqrt(2 * L**2 * np.mean(squares) + 2 * B**2))


def wasserstein(a: Array, b: Array, order: int = 1) -> float:
    """W_p between two sets of equally many points [n, d], exactly: the best of all pairings."""
    costs = cdist(a, b) ** order
    rows, columns = linear_sum_assignment(costs)
    return float(costs[rows, columns].mean() ** (1 / order))


def support_distance(points: list[Array]) -> float:
    """D of Assumption 4.3: from every point of a client there is one of any other client within D."""
    return max(float(cdist(a, b).min(1).max()) for a in points for b in points)


def lipschitz_extension(points: Array, labels: Array, at: Array) -> Array:
    """u of (13) at [k, d]: min_j (y_j + L ||x - x_j||) with the smallest L that the labels [n, c] allow."""
    rise = np.abs(labels[:, None] - labels[None]).max(-1)
    apart = cdist(points, points)
    L = np.divide(rise, apart, out=np.zeros_like(rise), where=rise > 0).max()
    return np.asarray((labels[None] + L * cdist(at, points)[:, :, None]).min(1))


# --- optima ---


def square_optimum(labels: Array, alpha: Array, mu: float) -> Array:
    """argmin of 1/N sum_i (1/2 ||f - y_i||^2 + mu/2 ||f||^2) under alpha_i; labels [N, m, c]."""
    mass = alpha.sum(0)[:, None]
    mean = (alpha[:, :, None] * labels).sum(0) / np.where(mass > 0, mass, 1.0)
    return np.asarray(mean / (1 + mu))


def cross_entropy_optimum(shares: Array, alpha: Array, mu: float) -> Array:
    """The same for the cross-entropy with the shares [N, m, c] of each class: softmax(f) + mu f = mean share."""
    mass = alpha.sum(0)[:, None]
    mean = (alpha[:, :, None] * shares).sum(0) / np.where(mass > 0, mass, 1.0)
    f = np.zeros_like(mean)
    for _ in range(100):  # Newton; the objective is strongly convex and smooth
        p = softmax(f)
        hessian = p[:, :, None] * np.eye(f.shape[1]) - p[:, :, None] * p[:, None, :] + mu * np.eye(f.shape[1])
        f = f - np.linalg.solve(hessian, (p + mu * f - mean)[:, :, None])[:, :, 0]
    return np.asarray(f)


def softmax(f: Array) -> Array:
    e = np.exp(f - f.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))

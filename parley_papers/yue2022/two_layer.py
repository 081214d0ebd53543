"""Paper 003's wide two-layer network f(x) = 1/sqrt(n) sum_r c_r relu(v_r'x), its kernel, and what the paper bounds.

Only the first layer v [n, d] trains; c is fixed in {-1, 1}; inputs have length 1 and N of them are the rows of x. H at
infinite width is `parley.theory.kernel.TwoLayerNTK`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parley_papers.arrays import Array


@dataclass(frozen=True, eq=False)
class TwoLayer:
    """The network (12) with its weights."""

    v: Array
    c: Array

    @classmethod
    def drawn(cls, width: int, inputs: int, rng: np.random.Generator, alpha: float = 1.0) -> TwoLayer:
        """Assumption 1 with the covariance alpha^2 I."""
        return cls(alpha * rng.standard_normal((width, inputs)), rng.choice([-1.0, 1.0], width))

    def __call__(self, x: Array) -> Array:
        return np.asarray(np.maximum(x @ self.v.T, 0) @ self.c / np.sqrt(len(self.c)), dtype=np.float64)

    def pattern(self, x: Array) -> Array:
        """1_ir: which neurons are active at which sample, [N, n]."""
        return np.asarray(x @ self.v.T >= 0, dtype=np.float64)

    def kernel(self, x: Array) -> Array:
        """H, (6) for this network."""
        active = self.pattern(x)
        return np.asarray((x @ x.T) * (active @ active.T) / len(self.c), dtype=np.float64)

    def pull(self, x: Array, r: Array) -> Array:
        """J'r, [n, d]."""
        return np.asarray((self.pattern(x) * r[:, None] * self.c).T @ x / np.sqrt(len(self.c)), dtype=np.float64)

    def moved(self, step: Array) -> TwoLayer:
        return TwoLayer(self.v + step, self.c)


def descended(net: TwoLayer, x: Array, y: Array, rate: float, steps: int) -> TwoLayer:
    """So many steps of size `rate` on 1/2 ||f - y||^2."""
    for _ in range(steps):
        net = net.moved(-rate * net.pull(x, net(x) - y))
    return net


def evolved(net: TwoLayer, x: Array, y: Array, rate: float, steps: int) -> TwoLayer:
    """NTK-FL's weights (9b): v - rate J' sum_{u<t} (f_u - y), where f_u follows the kernel of the start."""
    values, vectors = np.linalg.eigh(net.kernel(x))
    decay = np.exp(-rate * np.maximum(values, 0))
    with np.errstate(invalid="ignore", divide="ignore"):
        sums = np.where(decay < 1, (1 - decay**steps) / (1 - decay), float(steps))
    return net.moved(-rate * net.pull(x, vectors @ (sums * (vectors.T @ (net(x) - y)))))


def averaged(net: TwoLayer, x: list[Array], y: list[Array], rate: float, steps: int) -> TwoLayer:
    """FedAvg: the mean of what clients reach in so many local steps of size `rate` on 1/2 ||f - y_m||^2."""
    ends = [descended(net, inputs, targets, rate, steps).v for inputs, targets in zip(x, y, strict=True)]
    return TwoLayer(np.mean(ends, axis=0), net.c)


def flips(net: TwoLayer, x: Array, radius: float) -> Array:
    """|S_i| (17): neurons whose pattern at x_i some v within the radius changes: those with |v_r'x_i| <= R."""
    return np.asarray((np.abs(x @ net.v.T) <= radius).sum(1))


def flip_bound(width: int, radius: float, delta: float, alpha: float = 1.0) -> float:
    """Lemma 1 (18), of one sample: the union over samples that "for all i" needs is not in it."""
    return float(np.sqrt(2 / np.pi) * width * radius / (delta * alpha))


def drift_bound(samples: int, radius: float, delta: float, alpha: float = 1.0) -> float:
    """Lemma 3 (26): of ||H_t - H||_2 where no v_r has moved by more than the radius."""
    return float(2 * np.sqrt(2 / np.pi) * samples * radius / (delta * alpha))


def width_bound(samples: int, width: int, delta: float) -> float:
    """Lemma 4 (31): of ||H - H_infinity||_2."""
    return float(samples * np.sqrt(np.log(2 * samples**2 / delta) / (2 * width)))


def weight_bound(width: int, inputs: int, lr: float, largest: Array, delta: float, alpha: float = 1.0) -> Array:
    """Lemma 2 (22): of ||w_t - descended w_t||_1 for t = 1, 2, ...; `largest`: gamma_u, from u = 1."""
    sums = np.concatenate([[0.0], np.cumsum(largest)])
    return np.asarray(np.sqrt(2 * width * inputs) * lr / (np.sqrt(np.pi) * delta * alpha) * sums, dtype=np.float64)

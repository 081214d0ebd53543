"""Random federations for paper 000, and its two methods simulated straight from their definitions."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from parley.theory import kernel as k


@dataclass
class Problem:
    """A federation and functions f = sum_j a_j k(., z_j) over anchors z: the N samples, then some other points."""

    federation: k.KernelFederation
    anchors: np.ndarray
    rng: np.random.Generator

    @property
    def N(self) -> int:
        return self.federation.samples.N

    def gram(self) -> np.ndarray:
        return self.federation.kernel(self.anchors, self.anchors)

    def values(self, a: np.ndarray) -> np.ndarray:
        """f at the samples."""
        return (self.gram() @ a)[: self.N]

    def norm(self, a: np.ndarray) -> float:
        return float(np.sqrt(max(a @ self.gram() @ a, 0.0)))

    def function(self) -> np.ndarray:
        a = self.rng.standard_normal(len(self.anchors))
        return a / max(self.norm(a), 1e-12)

    def operator(self, a: np.ndarray, client: int) -> np.ndarray:
        """L_i f = f - (eta / n_i) sum_j f(x_ij) k(., x_ij), eq. (8)."""
        part = self.federation.samples.slices[client]
        result = a.copy()
        n = part.stop - part.start
        result[part] -= self.federation.method.eta / n * (self.gram() @ a)[part]
        return result

    def local(self, a: np.ndarray, y: np.ndarray, client: int) -> np.ndarray:
        """The client's update from f_{t-1}: s gradient steps, or the minimiser of (6)."""
        method, part = self.federation.method, self.federation.samples.slices[client]
        n = part.stop - part.start
        gram = self.gram()
        if isinstance(method, k.GradientSteps):
            for _ in range(method.s):
                residual = (gram @ a)[part] - y[part]
                a = a.copy()
                a[part] -= method.eta / n * residual
            return a
        # Stationarity of (6): f = f_start - (eta / n) sum_j r_j k(., x_ij) with r = f(x_i) - y_i.
        r = np.linalg.solve(np.eye(n) + method.eta / n * gram[part, part], (gram @ a)[part] - y[part])
        a = a.copy()
        a[part] -= method.eta / n * r
        return a

    def round(self, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        sizes = self.federation.samples.sizes
        return sum(n / self.N * self.local(a, y, i) for i, n in enumerate(sizes))


def draw_method(rng: np.random.Generator, largest: float) -> k.KernelStep:
    """FedAvg with gamma < 1, or FedProx with any gamma."""
    if rng.random() < 0.6:
        return k.GradientSteps(float(rng.uniform(0.05, 0.99)) / largest, int(rng.integers(1, 12)))
    return k.ProximalStep(float(rng.uniform(0.05, 5)) / largest)


@pytest.fixture(scope="session")
def problem() -> Callable[[int], Problem]:
    def build(seed: int) -> Problem:
        rng = np.random.default_rng(seed)
        p = int(rng.integers(1, 6))
        sizes = rng.choice([1, 1, 2, 3, 5, 9, 14], int(rng.integers(1, 6)))
        clients = [rng.uniform(0, 1, (n, p)) for n in sizes]
        if rng.random() < 0.5:  # duplicates within a client and across clients
            clients[-1][-1] = clients[0][0]
            clients[0] = np.vstack([clients[0], clients[0][:1]])
        kernels: list[k.Kernel] = [
            k.Linear(),
            k.Linear(0.5),
            k.Polynomial(2),
            k.RBF(0.4),
            k.Laplace(0.7),
            k.ArcCosine(1),
            k.TwoLayerNTK(),
            k.FeatureKernel(k.Identity()),
        ]
        if p == 1:
            kernels += [k.Sobolev(), k.FeatureKernel(k.Monomials(3)), k.FeatureKernel(k.Chebyshev(4, 2))]
        kernel = kernels[rng.integers(len(kernels))]
        largest = max(np.linalg.norm(kernel(x, x), 2) / len(x) for x in clients)
        federation = k.KernelFederation.of(kernel, clients, draw_method(rng, largest))
        extra = rng.uniform(0, 1, (3, p))
        return Problem(federation, np.vstack([federation.samples.x, extra]), rng)

    return build

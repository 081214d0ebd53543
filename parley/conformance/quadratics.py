"""Heterogeneous quadratics as an ordinary federation, so that the training engine itself can be held against theory.

Client i has f_i(x) = 1/2 (x - c_i)' A_i (x - c_i). As data: n_i samples X_i = sqrt(n_i) [A_i^(1/2); 0], y_i = X_i c_i,
with the loss `half-squares` and a linear model without bias; its weight is p_i = n_i / N. Everything is float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from parley.algorithms.protocol import Algorithm
from parley.core.key import Key
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.store.records import RoundRecord
from parley.study.train import train
from parley.theory.spectra import random_clients
from parley.theory.surrogate import Quadratics
from parley.theory.theta import Array

__all__ = ["QuadraticSetting", "path", "random_setting"]


@dataclass(frozen=True, eq=False)
class QuadraticSetting:
    """Clients, how many samples each has, and a start."""

    clients: Quadratics
    sizes: tuple[int, ...]
    start: Array

    @property
    def dimension(self) -> int:
        return len(self.start)

    def federation(self) -> Federation:
        info = DataInfo("quadratics", (self.dimension,), 1, "regression")
        data = [self._client(number, size) for number, size in enumerate(self.sizes)]
        return Federation(info, tuple(str(number) for number in range(len(data))), InMemory(tuple(data)))

    def model(self) -> nn.Sequential:
        """x -> <weight, x> with the weight at the start."""
        layer = nn.Linear(self.dimension, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(self.start)[None])
        return nn.Sequential(layer)

    def _client(self, number: int, size: int) -> ClientData:
        values, vectors = self.clients.eigenvalues[number], self.clients.eigenvectors[number]
        x = np.zeros((size, self.dimension))
        x[: self.dimension] = np.sqrt(size) * (vectors * np.sqrt(values)) @ vectors.T
        return ClientData(torch.from_numpy(x), torch.from_numpy(x @ self.clients.c[number]))


def random_setting(key: Key, dimension: int, kappa0: float, clients: int = 4) -> QuadraticSetting:
    """Clients of unequal sizes with related Hessians of spectra in [1, kappa_0] and optima in the unit ball.

    The start is at distance 1 from the true optimum x*.
    """
    rng = key.numpy()
    equal = random_clients(dimension, clients, kappa0, rng, rotation=0.3)
    sizes = tuple(dimension * (number + 1) + number for number in range(clients))
    weighted = Quadratics(equal.A, equal.c, np.array(sizes, dtype=np.float64))
    direction = rng.standard_normal(dimension)
    start = weighted.empirical_minimiser + direction / np.linalg.norm(direction)
    return QuadraticSetting(weighted, sizes, start)


class _Path(Listener):
    """Remembers the server's model after every round."""

    def __init__(self) -> None:
        self.points: list[Array] = []

    def start(self, run: Run, rounds: int) -> None:
        self._run = run
        self._note()

    def round(self, record: RoundRecord) -> None:
        self._note()

    def _note(self) -> None:
        weights = self._run.learned.weights(self._run.model())
        assert weights is not None
        self.points.append(np.concatenate([value.numpy().ravel() for value in weights.values()]))


def path(setting: QuadraticSetting, algorithm: Algorithm, rounds: int, runtime: str) -> Array:
    """x_0 ... x_T of the training engine, [T + 1, d]."""
    seen = _Path()
    train(
        algorithm,
        setting.federation(),
        model=setting.model(),
        rounds=rounds,
        loss="half-squares",
        runtime=runtime,
        listeners=[seen],
    )
    return np.stack(seen.points)

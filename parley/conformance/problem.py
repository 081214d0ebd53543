"""Heterogeneous quadratics on which every gradient is exact, whatever the batch, as an ordinary federation.

Client i has f_i(x) = 1/2 (x - c_i)' A_i (x - c_i) and n_i samples that are all alike: the matrix A_i^(1/2) with the
target A_i^(1/2) c_i. So any batch gives the full gradient, clients may take different numbers of steps, and their
weights are p_i = n_i / N. The model is linear in two parts, `phi` and `h`, that A_i couples. Everything is float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from parley.algorithms.protocol import Algorithm
from parley.core.key import Key
from parley.core.tree import flat
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.study.train import train
from parley.theory.spectra import random_clients
from parley.theory.surrogate import Quadratics
from parley.theory.theta import Array

__all__ = ["QuadraticProblem", "TwoParts", "dyadic_problem", "quadratic_problem", "weights_of"]


class TwoParts(nn.Module):
    """x -> <phi, first coordinates> + <h, the others>."""

    def __init__(self, start: Array, phi: int) -> None:
        super().__init__()
        self.phi = nn.Linear(phi, 1, bias=False, dtype=torch.float64)
        self.h = nn.Linear(len(start) - phi, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.phi.weight.copy_(torch.from_numpy(start[None, :phi]))
            self.h.weight.copy_(torch.from_numpy(start[None, phi:]))

    def forward(self, x: Tensor) -> Tensor:
        """[B, rows, d] to [B, rows, 1]."""
        split = self.phi.in_features
        total: Tensor = self.phi(x[..., :split]) + self.h(x[..., split:])
        return total


@dataclass(frozen=True, eq=False)
class QuadraticProblem:
    """Clients as the theory has them, each with its rows [k, d] and targets [k], and a start far from all optima."""

    clients: Quadratics
    rows: Array
    targets: Array
    sizes: tuple[int, ...]
    start: Array
    phi: int
    """Coordinates in the first part."""

    def federation(self) -> Federation:
        data = tuple(
            ClientData(
                torch.from_numpy(rows).expand(n, *rows.shape).clone(), torch.from_numpy(y).expand(n, len(y)).clone()
            )
            for rows, y, n in zip(self.rows, self.targets, self.sizes, strict=True)
        )
        info = DataInfo("quadratics", self.rows.shape[1:], self.targets.shape[1], "regression")
        return Federation(info, tuple(map(str, range(len(data)))), InMemory(data))

    def run(
        self,
        algorithm: Algorithm,
        rounds: int,
        runtime: str = "inline",
        cohort: Sampling | None = None,
        faults: Faults | None = None,
        listeners: tuple[Listener, ...] = (),
        seed: int = 0,
        federation: Federation | None = None,
        evaluation: Evaluation | None = None,
    ) -> Run:
        """Train with the engine itself, on all clients' data or on another federation of the same shape."""
        return train(
            algorithm,
            federation or self.federation(),
            model=TwoParts(self.start, self.phi),
            rounds=rounds,
            loss="half-squares",
            cohort=cohort,
            runtime=runtime,
            faults=faults,
            listeners=listeners,
            seed=seed,
            evaluation=evaluation,
        )

    def alone(self, client: int = 0) -> QuadraticProblem:
        """The problem with one of the clients only."""
        only = slice(client, client + 1)
        single = Quadratics(self.clients.A[only], self.clients.c[only])
        return replace(self, clients=single, rows=self.rows[only], targets=self.targets[only], sizes=self.sizes[only])

    def uniform(self) -> Quadratics:
        """The clients with equal weights."""
        return Quadratics(self.clients.A, self.clients.c)


def weights_of(run: Run) -> Array:
    """The reported model as one vector, [d]."""
    weights = run.learned.weights(run.model())
    assert weights is not None
    return flat(weights)


def quadratic_problem(seed: int = 0, *, coupled: bool = True) -> QuadraticProblem:
    """Four clients in five dimensions, spectra in [1, 4], sizes 3, 6, 9, 12."""
    rng = Key(seed).fold("conformance").numpy()
    drawn = random_clients(5, 4, 4.0, rng, rotation=0.5)
    A = drawn.A.copy()
    if not coupled:
        A[:, :3, 3:] = A[:, 3:, :3] = 0.0
    clients = Quadratics(A, drawn.c, np.array([3.0, 6.0, 9.0, 12.0]))
    roots = clients.compose(np.sqrt(clients.eigenvalues))
    direction = rng.standard_normal(5)
    start = 3.0 * direction / np.linalg.norm(direction)
    return QuadraticProblem(clients, roots, np.einsum("ijk,ik->ij", roots, clients.c), (3, 6, 9, 12), start, 3)


def dyadic_problem() -> QuadraticProblem:
    """Small integers: with step sizes that are powers of two a few rounds involve no rounding at all."""
    rows = np.array([[[1.0, 1.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 1.0]]])
    c = np.array([[1.0, -2.0], [-3.0, 1.0]])
    clients = Quadratics(np.swapaxes(rows, 1, 2) @ rows, c)
    return QuadraticProblem(clients, rows, np.einsum("ijk,ik->ij", rows, c), (2, 2), np.array([5.0, -3.0]), 1)

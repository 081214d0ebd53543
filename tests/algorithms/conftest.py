"""Heterogeneous quadratic clients as least-squares data, on which the fixed points of methods are known exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from parley.algorithms.protocol import Algorithm
from parley.core.errors import UnsupportedError
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.run import Run
from parley.engine.settings import Faults
from parley.store.runs import RunStore
from parley.study.train import train


@dataclass(frozen=True)
class Problem:
    """Client i has f_i(x) = 1/2 (x - c_i)' A_i (x - c_i), as n_i samples of a linear model without bias."""

    A: np.ndarray
    c: np.ndarray
    sizes: tuple[int, ...]
    start: np.ndarray

    @property
    def federation(self) -> Federation:
        """X_i = sqrt(n_i) V_i A_i^{1/2} with V_i' V_i = I, y_i = X_i c_i, in double precision."""
        random = np.random.default_rng(1)
        clients = []
        for A, c, size in zip(self.A, self.c, self.sizes, strict=True):
            values, vectors = np.linalg.eigh(A)
            V = np.linalg.qr(random.normal(size=(size, len(c))))[0]
            X = np.sqrt(size) * V @ (vectors * np.sqrt(values)) @ vectors.T
            clients.append(ClientData(torch.from_numpy(X), torch.from_numpy(X @ c)))
        info = DataInfo("quadratics", self.c.shape[1:], 1, "regression")
        return Federation(info, tuple(map(str, range(len(self.c)))), InMemory(tuple(clients)))

    @property
    def model(self) -> nn.Module:
        module = nn.Linear(self.c.shape[1], 1, bias=False).double()
        with torch.no_grad():
            module.weight.copy_(torch.from_numpy(self.start))
        return module

    def weights(self, kind: str) -> np.ndarray:
        """p_i by size, or the same for all."""
        return np.array(self.sizes) / sum(self.sizes) if kind == "size" else np.full(len(self.c), 1 / len(self.c))

    def surrogate(self, gamma: float, theta: Sequence[float], alpha: float, p: np.ndarray) -> tuple[np.ndarray, ...]:
        """Hessian and minimiser of the surrogate (paper 001, eq. 6 and Lemma 11), straight from the formulas."""
        I = np.eye(self.c.shape[1])  # noqa: E741
        powers = [np.linalg.matrix_power(I - gamma * (A + alpha * I), k) for A in self.A for k in range(len(theta))]
        K = len(theta)
        Q = [sum(t * powers[i * K + k] for k, t in enumerate(theta)) for i in range(len(self.A))]
        hessian = sum(w * q @ A for w, q, A in zip(p, Q, self.A, strict=True))
        right = sum(w * q @ A @ c for w, q, A, c in zip(p, Q, self.A, self.c, strict=True))
        return hessian, np.linalg.solve(hessian, right)


@pytest.fixture
def quadratics() -> Callable[[int], Problem]:
    """Four clients in three dimensions with eigenvalues in [0.5, 1] and different sizes, optima and axes."""

    def make(seed: int) -> Problem:
        random = np.random.default_rng(seed)
        bases = [np.linalg.qr(random.normal(size=(3, 3)))[0] for _ in range(4)]
        A = np.stack([(V * random.uniform(0.5, 1.0, 3)) @ V.T for V in bases])
        sizes = tuple(int(n) for n in random.choice(np.arange(3, 30), 4, replace=False))
        return Problem(A, random.normal(size=(4, 3)) * 2, sizes, random.normal(size=3))

    return make


@pytest.fixture(scope="session")
def table() -> Federation:
    """Five clients of unequal sizes with three classes, and held-out samples."""
    random = np.random.default_rng(5)
    clients = {}
    for number, size in enumerate((8, 16, 7, 12, 10)):
        x = random.normal(size=(size, 6)).astype(np.float32) + 0.3 * number
        clients[f"c{number}"] = (x, (x[:, 0] + x[:, 1] * number > 0.5).astype(np.int64) + (x[:, 2] > 1))
    return Federation.from_arrays(clients)


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def normalised() -> nn.Module:
    """BatchNorm in the body and in front of the head's layer."""
    return nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
    )


def equal(one: Run, other: Run) -> None:
    """The same bits in the state and in all memories."""
    for a, b in [(one.state, other.state), *[(one.memory(i), other.memory(i)) for i in one.federation.ids]]:
        assert a.tensors.keys() == b.tensors.keys()
        assert a.scalars == b.scalars
        for name, value in a.tensors.items():
            assert torch.equal(value, b.tensors[name]), name


def close(one: Run, other: Run) -> None:
    """The same to rounding."""
    for a, b in [(one.state, other.state), *[(one.memory(i), other.memory(i)) for i in one.federation.ids]]:
        assert a.tensors.keys() == b.tensors.keys()
        for name, value in a.tensors.items():
            torch.testing.assert_close(b.tensors[name], value, rtol=1e-4, atol=1e-5)


@pytest.fixture
def works_everywhere(table: Federation, tmp_path) -> Callable[..., Run]:
    """A method with clients that drop out: pool == inline == interrupted and resumed bit for bit, stacked close."""

    def check(method: Algorithm, *, stacks: bool = True, rounds: int = 5) -> Run:
        def run(make: Callable[[], nn.Module], runtime: str = "inline", rounds: int = rounds, **options) -> Run:
            faults = Faults(dropout=0.25, quorum=0.0)
            done = train(
                method,
                table,
                model=make,
                rounds=rounds,
                cohort=4,
                faults=faults,
                seed=3,
                secret=bytes(16),
                runtime=runtime,
                workers=2,
                **options,
            )
            failures = [failure for record in done.records for failure in record.failures]
            assert all("simulated" in failure.reason for failure in failures)
            assert failures
            return done

        for buffers in ("average", "local"):
            whole, store = run(normalised, buffers=buffers), RunStore(tmp_path / buffers)
            first = run(normalised, rounds=3, buffers=buffers, store=store)
            equal(whole, run(normalised, buffers=buffers, store=store, resume=first.id))
        equal(whole, run(normalised, "pool", buffers="local"))
        plain = run(dense)
        if stacks:
            close(plain, run(dense, "stacked"))
        else:
            with pytest.raises(UnsupportedError, match='use "inline"'):
                run(dense, "stacked")
        return plain

    return check


@pytest.fixture
def network() -> Callable[[], nn.Module]:
    """With BatchNorm."""
    return normalised


@pytest.fixture
def dense_network() -> Callable[[], nn.Module]:
    return dense

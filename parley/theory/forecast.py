"""What a method will do, round by round, on clients whose losses are known quadratics around their common optimum.

    f_i(x* + z) = f_i(x*) + g_i'z + z'A_i z / 2,     sum_i p_i g_i = 0

K local steps of size gamma with a pull alpha to the server's model and a constant v_i added to the gradients move
client i by

    Delta_i = -P_i (g_i + A_i z + v_i),     P_i = gamma sum_{k<K} (I - gamma (A_i + alpha I))^k,

so that FedAvg and FedProx (v_i = 0), SCAFFOLD (v_i = c - c_i) and FedDyn (v_i = -h_i) are affine recursions. Nothing is
trained: one client costs one product with a d x d matrix per round, whatever K. Batches add noise of the covariance
that single samples' gradients have, cohorts are drawn as the engine draws them (not the same ones).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from parley.core.errors import InputError
from parley.theory.theta import Array

Method = Literal["fedavg", "fedprox", "scaffold", "feddyn"]
ServerName = Literal["sgd", "heavy-ball", "nesterov", "adam"]


@dataclass(frozen=True)
class ServerStep:
    """What the server does with the mean change: a step `eta`, and momentum (of Adam: its first decay)."""

    name: ServerName = "sgd"
    eta: float = 1.0
    momentum: float = 0.0
    decay: float = 0.99
    """Of Adam's second moment."""
    epsilon: float = 1e-3
    """Of Adam."""


@dataclass(frozen=True)
class LocalWork:
    """What clients do: the method, gamma, K and alpha."""

    method: Method
    gamma: float
    K: int
    alpha: float = 0.0


@dataclass(frozen=True, eq=False)
class LocalQuadratics:
    """Clients around their common optimum, the start, and what is random about a round."""

    A: Array
    """[m, d, d] symmetric; directions may be flat."""
    g: Array
    """[m, d], the clients' gradients at the optimum."""
    p: Array
    """[m] weights, summing to one."""
    start: Array
    """[d], x_0 - x*."""
    noise: Array | None = None
    """[m, d, d] covariance of one local step's gradient; None: full gradients."""
    cohort: int | None = None
    """Clients per round, drawn uniformly; None: all."""

    def __post_init__(self) -> None:
        m, d = self.g.shape
        if self.A.shape != (m, d, d) or self.p.shape != (m,) or self.start.shape != (d,):
            raise InputError("a forecast needs A [m, d, d], g [m, d], p [m] and a start [d].")

    @property
    def mean_hessian(self) -> Array:
        return np.asarray(np.einsum("i,ijk->jk", self.p, self.A))

    @property
    def L(self) -> float:
        """The largest curvature of any client."""
        return float(self._spectra[0].max())

    def excess(self, z: Array) -> Array:
        """f(x* + z) - f(x*) of the weighted mean loss, for z [..., d]."""
        return np.asarray(0.5 * np.einsum("...i,ij,...j->...", z, self.mean_hessian, z))

    def scaled(self, curvature: float, pull: float = 1.0) -> LocalQuadratics:
        """The same with all curvatures and pulls times a factor: what if they were mistaken by so much."""
        return replace(self, A=self.A * curvature, g=self.g * pull)

    @cached_property
    def _spectra(self) -> tuple[Array, Array]:
        values, vectors = np.linalg.eigh(self.A)
        return np.maximum(values, 0.0), vectors

    def movers(self, work: LocalWork) -> tuple[Array, Array | None]:
        """P_i, [m, d, d], and a factor of the covariance that batches give Delta_i, [m, d, d]."""
        values, vectors = self._spectra
        left = 1 - work.gamma * (values + work.alpha)
        moved = np.zeros_like(values)
        power = np.full_like(values, work.gamma)
        summed = np.zeros((*values.shape, values.shape[1]))
        pair = np.full_like(summed, work.gamma**2)
        ratio = left[:, :, None] * left[:, None, :]
        for _ in range(work.K):
            moved += power
            power = power * left
            if self.noise is not None:
                summed += pair
                pair = pair * ratio
        P = np.einsum("mia,ma,mja->mij", vectors, moved, vectors, optimize=True)
        if self.noise is None:
            return P, None
        inside = np.einsum("mia,mij,mjb->mab", vectors, self.noise, vectors, optimize=True) * summed
        root = np.linalg.eigh(inside)
        factor = vectors @ (root[1] * np.sqrt(np.maximum(root[0], 0.0))[:, None, :])
        return P, factor


def forecast(
    clients: LocalQuadratics, work: LocalWork, servers: Sequence[ServerStep], rounds: int, seed: int = 0
) -> Array:
    """f - f* at rounds 0 to `rounds`, for each server, [servers, rounds + 1]; infinite after divergence.

    SCAFFOLD takes servers without memory, FedDyn has its own and takes the default one.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if work.method in ("fedavg", "fedprox"):
            path = _averaging(clients, work, servers, rounds, seed)
        elif any(server.name != "sgd" for server in servers):
            raise InputError(f"{work.method} is forecast with plain server steps only.")
        else:
            step = _scaffold if work.method == "scaffold" else _feddyn
            path = np.stack([step(clients, work, server, rounds, seed) for server in servers])
        excess = clients.excess(path)
    return np.where(np.isfinite(excess), excess, np.inf)


def _cohorts(clients: LocalQuadratics, unbiased: bool, rng: np.random.Generator) -> tuple[Array, Array]:
    """Who takes part, [m] of 0 and 1, and with which weights, [m]."""
    m = len(clients.p)
    if clients.cohort is None or clients.cohort >= m:
        return np.ones(m), clients.p
    chosen = np.zeros(m)
    chosen[rng.choice(m, clients.cohort, replace=False)] = 1.0
    weights = clients.p * chosen
    return chosen, weights * m / clients.cohort if unbiased else weights / weights.sum()


def _averaging(
    clients: LocalQuadratics, work: LocalWork, servers: Sequence[ServerStep], rounds: int, seed: int
) -> Array:
    """z of FedAvg and FedProx, [servers, rounds + 1, d]."""
    rng = np.random.default_rng([seed, 1])
    P, factor = clients.movers(work)
    m, d = clients.g.shape
    maps = (P @ clients.A).reshape(m, -1)
    pulls = (P @ clients.g[:, :, None])[:, :, 0]
    z = np.tile(clients.start, (len(servers), 1))
    memory = _ServerMemory(servers, z)
    path = [z]
    everybody = clients.cohort is None or clients.cohort >= m
    Q, b = (clients.p @ maps).reshape(d, d), clients.p @ pulls
    for _ in range(rounds):
        _, w = _cohorts(clients, False, rng)
        if not everybody:
            Q, b = (w @ maps).reshape(d, d), w @ pulls
        q = memory.at(z) @ Q.T + b
        if factor is not None:
            q = q + np.einsum("m,mij,mj->i", w, factor, rng.standard_normal((m, d)), optimize=True)
        z = memory.step(z, q)
        path.append(z)
    return np.stack(path, axis=1)


class _ServerMemory:
    """Server optimizers, many at once: z, q [servers, d]."""

    def __init__(self, servers: Sequence[ServerStep], z: Array) -> None:
        self.eta = np.array([[server.eta] for server in servers])
        self.beta = np.array([[server.momentum] for server in servers])
        self.adam, self.nesterov = (
            np.array([[server.name == name] for server in servers]) for name in ("adam", "nesterov")
        )
        self.heavy = ~(self.adam | self.nesterov)
        self.decay = np.array([[server.decay] for server in servers])
        self.epsilon = np.array([[server.epsilon] for server in servers])
        self.previous = z.copy()
        self.m, self.v = np.zeros_like(z), np.zeros_like(z)

    def at(self, z: Array) -> Array:
        """Where clients start: the server's model, with Nesterov ahead of it."""
        return z + np.where(self.nesterov, self.beta * (z - self.previous), 0.0)

    def step(self, z: Array, q: Array) -> Array:
        moved = z + self.beta * (z - self.previous) - self.eta * q  # the same for heavy ball and Nesterov
        if self.adam.any():
            self.m = self.beta * self.m + (1 - self.beta) * q
            self.v = self.decay * self.v + (1 - self.decay) * q * q
            moved = np.where(self.adam, z - self.eta * self.m / (np.sqrt(self.v) + self.epsilon), moved)
        self.previous = z
        return moved


def _scaffold(clients: LocalQuadratics, work: LocalWork, server: ServerStep, rounds: int, seed: int) -> Array:
    rng = np.random.default_rng([seed, 1])
    P, factor = clients.movers(work)
    m, d = clients.g.shape
    z, c, c_i = clients.start, np.zeros(d), np.zeros((m, d))
    path = [z]
    for _ in range(rounds):
        chosen, w = _cohorts(clients, True, rng)
        moved = -_apply(P, clients.g + clients.A @ z + c - c_i)
        if factor is not None:
            moved = moved + _apply(factor, rng.standard_normal((m, d)))
        change = (-moved / (work.gamma * work.K) - c) * chosen[:, None]
        c_i, c = c_i + change, c + chosen.mean() * (w @ change)
        z = z + server.eta * (w @ moved)
        path.append(z)
    return np.stack(path)


def _feddyn(clients: LocalQuadratics, work: LocalWork, server: ServerStep, rounds: int, seed: int) -> Array:
    rng = np.random.default_rng([seed, 1])
    P, factor = clients.movers(work)
    m, d = clients.g.shape
    z, h, h_i = clients.start, np.zeros(d), np.zeros((m, d))
    path = [z]
    for _ in range(rounds):
        chosen, w = _cohorts(clients, True, rng)
        moved = -_apply(P, clients.g + clients.A @ z - h_i)
        if factor is not None:
            moved = moved + _apply(factor, rng.standard_normal((m, d)))
        h_i = h_i - work.alpha * moved * chosen[:, None]
        h = h - work.alpha * chosen.mean() * (w @ moved)
        z = z + w @ moved - h / work.alpha
        path.append(z)
    return np.stack(path)


def _apply(matrices: Array, vectors: Array) -> Array:
    return np.asarray((matrices @ vectors[:, :, None])[:, :, 0])

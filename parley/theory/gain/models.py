"""Models for `estimate_gains`: a client's best ridge regression on features or a kernel, and the federated ones."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from parley.theory.gain.estimate import FederatedFit, LocalFit, Predictor
from parley.theory.kernel.feature_space import FeatureSpace
from parley.theory.kernel.features import FeatureMap
from parley.theory.kernel.federation import KernelFederation
from parley.theory.kernel.kernels import Kernel
from parley.theory.kernel.methods import KernelStep
from parley.theory.kernel.trajectory import krylov_trajectory, trajectory
from parley.theory.theta import Array

PathFit: TypeAlias = Callable[[Sequence[Array], Sequence[Array]], Predictor]
"""All clients' points and targets -> the federated model at several rounds: points [m, p] -> predictions [m, T]."""
_DENSE = 300
"""Samples up to which a kernel federation is diagonalised outright."""
_SHARE = 5
"""Every so many samples of a client, one is held out to choose the round."""


def feature_local(phi: FeatureMap) -> LocalFit:
    """Ridge regression on phi(x) with the penalty of the least leave-one-out error."""

    def fit(x: Array, y: Array) -> Predictor:
        left, singular, right = np.linalg.svd(phi(x), full_matrices=False)
        theta = right.T @ (singular * ridge_weights(left, singular**2, y))
        return lambda new: np.asarray(phi(new) @ theta, dtype=np.float64)

    return fit


def kernel_local(kernel: Kernel) -> LocalFit:
    """Kernel ridge regression with the penalty of the least leave-one-out error."""

    def fit(x: Array, y: Array) -> Predictor:
        values, vectors = np.linalg.eigh(kernel(x, x))
        coefficients = vectors @ ridge_weights(vectors, np.maximum(values, 0.0), y)
        return lambda new: np.asarray(kernel(new, x) @ coefficients, dtype=np.float64)

    return fit


def feature_federated(phi: FeatureMap, method: KernelStep, rounds: int | None = None) -> FederatedFit:
    """FedAvg or FedProx on phi(x) after `rounds` rounds from zero; None is its limit."""

    def fit(clients: Sequence[Array], targets: Sequence[Array]) -> Predictor:
        space = FeatureSpace.of(phi, clients, targets, method)
        theta = space.limit() if rounds is None else space.theta(rounds)
        return lambda new: np.asarray(phi(new) @ theta, dtype=np.float64)

    return fit


def kernel_federated(kernel: Kernel, method: KernelStep, rounds: int) -> FederatedFit:
    """FedAvg or FedProx with a kernel after `rounds` rounds from zero."""

    def fit(clients: Sequence[Array], targets: Sequence[Array]) -> Predictor:
        federation = KernelFederation.of(kernel, clients, method)
        y = np.concatenate(list(targets))
        run = trajectory(federation, y) if federation.samples.N <= _DENSE else krylov_trajectory(federation, y, rounds)
        return lambda new: run.predict(new, rounds)

    return fit


def feature_path(phi: FeatureMap, method: KernelStep, rounds: Sequence[int], start: Array | None = None) -> PathFit:
    """FedAvg or FedProx on phi(x) at each of `rounds`, from theta_0 = `start` (default 0)."""

    def fit(clients: Sequence[Array], targets: Sequence[Array]) -> Predictor:
        space = FeatureSpace.of(phi, clients, targets, method)
        thetas = np.stack([space.theta(t, start) for t in rounds], axis=1)
        return lambda new: np.asarray(phi(new) @ thetas, dtype=np.float64)

    return fit


def kernel_path(kernel: Kernel, method: KernelStep, rounds: Sequence[int]) -> PathFit:
    """FedAvg or FedProx with a kernel at each of `rounds`, from zero."""

    def fit(clients: Sequence[Array], targets: Sequence[Array]) -> Predictor:
        federation, y = KernelFederation.of(kernel, clients, method), np.concatenate(list(targets))
        dense = federation.samples.N <= _DENSE
        run = trajectory(federation, y) if dense else krylov_trajectory(federation, y, max(rounds))
        return lambda new: run.predict(new, list(rounds))

    return fit


def best_round(path: PathFit, rng: np.random.Generator) -> FederatedFit:
    """The federated model at the round of least error on a fifth of each client's samples, trained again on all."""

    def fit(clients: Sequence[Array], targets: Sequence[Array]) -> Predictor:
        out = [rng.permutation(len(x)) % _SHARE == _SHARE - 1 for x in clients]
        early = path(*([v[~part] for v, part in zip(side, out, strict=True)] for side in (clients, targets)))
        errors = sum(
            ((early(x[part]) - y[part, None]) ** 2).sum(axis=0)
            for x, y, part in zip(clients, targets, out, strict=True)
            if part.any()
        )
        # Where every client is too small to hold out anything, all rounds look alike and the last is taken.
        best = int(np.argmin(errors)) if np.ndim(errors) else -1
        whole = path(clients, targets)
        return lambda new: np.asarray(whole(new)[:, best], dtype=np.float64)

    return fit


def ridge_weights(vectors: Array, eigenvalues: Array, y: Array) -> Array:
    """U'y / (eigenvalue + penalty) with the penalty of least leave-one-out error; K = U diag(eigenvalues) U', U [n, r].

    For one sample the error at every penalty is y itself, and the largest penalty is taken.
    """
    coordinates = vectors.T @ y
    top = max(float(eigenvalues.max(initial=0.0)), float(np.finfo(np.float64).tiny))
    penalties = top * np.geomspace(1e-8, 1e3, 45)
    shrunk = eigenvalues[:, None] / (eigenvalues[:, None] + penalties)
    residual = y[:, None] - vectors @ (shrunk * coordinates[:, None])
    leverage = vectors**2 @ shrunk
    errors = ((residual / np.maximum(1 - leverage, 1e-10)) ** 2).sum(axis=0)
    best = penalties[len(penalties) - 1 - int(np.argmin(errors[::-1]))]
    return np.asarray(coordinates / (eigenvalues + best), dtype=np.float64)

"""Models for `estimate_gains`: a client's best ridge regression on features or a kernel, and the federated ones."""

from collections.abc import Sequence

import numpy as np

from parley.theory.gain_estimate import FederatedFit, LocalFit, Predictor
from parley.theory.kernel.feature_space import FeatureSpace
from parley.theory.kernel.features import FeatureMap
from parley.theory.kernel.federation import KernelFederation
from parley.theory.kernel.kernels import Kernel
from parley.theory.kernel.methods import Method
from parley.theory.kernel.trajectory import krylov_trajectory, trajectory
from parley.theory.theta import Array


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


def feature_federated(phi: FeatureMap, method: Method, rounds: int | None = None) -> FederatedFit:
    """FedAvg or FedProx on phi(x) after `rounds` rounds from zero; None is its limit."""

    def fit(clients: Sequence[Array], targets: Sequence[Array]) -> Predictor:
        space = FeatureSpace.of(phi, clients, targets, method)
        theta = space.limit() if rounds is None else space.theta(rounds)
        return lambda new: np.asarray(phi(new) @ theta, dtype=np.float64)

    return fit


def kernel_federated(kernel: Kernel, method: Method, rounds: int) -> FederatedFit:
    """FedAvg or FedProx with a kernel after `rounds` rounds from zero."""

    def fit(clients: Sequence[Array], targets: Sequence[Array]) -> Predictor:
        federation = KernelFederation.of(kernel, clients, method)
        y = np.concatenate(list(targets))
        run = trajectory(federation, y) if federation.samples.N <= 300 else krylov_trajectory(federation, y, rounds)
        return lambda new: run.predict(new, rounds)

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

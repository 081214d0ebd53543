"""Kernel regression against Proposition 3 of Su et al., in NumPy: every round, and the limit in closed form."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.kernel.exact import KernelFedAvg, KernelFedProx
from parley.algorithms.kernel.features import FeatureFedAvg, FeatureFedProx
from parley.algorithms.kernel.ridge import Ridge
from parley.algorithms.protocol import Algorithm
from parley.conformance.case import Case
from parley.core.key import Key
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Sampling
from parley.models.feature_model import FeatureModel
from parley.study.train import train
from parley.theory import kernel as theory
from parley.theory.theta import Array

ETA, ROUNDS = 0.9, 20
SIZES = (1, 4, 9, 16)
"""A single point, fewer points than features, and more."""


@dataclass(frozen=True, eq=False)
class Points:
    """Four clients on the line, each with a curve of its own; two share a point."""

    x: list[Array]
    y: list[Array]
    phi: theory.FeatureMap

    @classmethod
    def drawn(cls) -> Points:
        rng = Key(0).fold("conformance", "kernel").numpy()
        x = [rng.uniform(-1, 1, (n, 1)) for n in SIZES]
        x[2][0] = x[3][0]
        y = [np.sin(4 * p[:, 0]) + 0.3 * i + 0.2 * rng.standard_normal(len(p)) for i, p in enumerate(x)]
        return cls(x, y, theory.random_fourier(1, 6, rng, 0.15))

    def data(self) -> Federation:
        """The clients as the engine has them."""
        data = tuple(ClientData(torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(self.x, self.y, strict=True))
        return Federation(DataInfo("points", (1,), 1, "regression"), ("a", "b", "c", "d"), InMemory(data))

    def run(
        self,
        algorithm: Algorithm,
        rounds: int,
        runtime: str,
        cohort: Sampling | None = None,
        federation: Federation | None = None,
        listeners: tuple[Listener, ...] = (),
    ) -> Run:
        """Train with the engine itself, from zero, on these clients or on some of them."""
        return train(
            algorithm,
            federation or self.data(),
            model=FeatureModel(self.phi, (1,), 1),
            rounds=rounds,
            loss="half-squares",
            runtime=runtime,
            cohort=cohort,
            listeners=listeners,
        )

    def learned(self, run: Run) -> Array:
        """f at all samples, [N]."""
        with torch.no_grad():
            return np.asarray(run.predictor()(torch.from_numpy(np.concatenate(self.x))).numpy()[:, 0])

    def federation(self, kernel: theory.Kernel, method: theory.KernelStep) -> theory.KernelFederation:
        return theory.KernelFederation.of(kernel, self.x, method)


def regression() -> list[Case]:
    """All four methods."""
    given, rbf = Points.drawn(), theory.RBF(0.5)
    features = theory.FeatureKernel(given.phi)
    prox = theory.ProximalStep(5.0)
    one_step, many, all_steps = (theory.GradientSteps(ETA, s) for s in (1, 3, 400))
    line = theory.Linear()
    kernel_avg, kernel_prox = KernelFedAvg(ETA, kernel=features, steps=3), KernelFedProx(ETA, kernel=features)
    feature_avg, feature_prox = FeatureFedAvg(ETA, steps=3), FeatureFedProx(ETA)
    cases = []
    for m in (one_step, many, all_steps):
        cases.append(_rounds("kernel-fedavg", given, replace(kernel_avg, kernel=rbf, steps=m.s), rbf, m))
        cases.append(_rounds("feature-fedavg", given, replace(feature_avg, steps=m.s), features, m))
    return [
        *cases,
        _rounds("kernel-fedprox", given, replace(kernel_prox, lr=5.0, kernel=rbf), rbf, prox),
        _rounds("feature-fedprox", given, replace(feature_prox, lr=5.0), features, prox),
        _limit("kernel-fedavg", given, replace(kernel_avg, kernel=line), line, many, 50),
        _limit("kernel-fedprox", given, replace(kernel_prox, lr=5.0, kernel=line), line, prox, 60),
        _limit("feature-fedavg", given, replace(feature_avg, steps=200), features, theory.GradientSteps(ETA, 200), 150),
        _limit("feature-fedprox", given, replace(feature_prox, lr=500.0), features, theory.ProximalStep(500.0), 150),
        _batches("kernel-fedavg", given, replace(kernel_avg, batch=3, steps=2), theory.GradientSteps(ETA, 2)),
        _batches("kernel-fedprox", given, replace(kernel_prox, batch=3, lr=5.0), prox),
        _batches("feature-fedavg", given, replace(feature_avg, batch=3, steps=2), theory.GradientSteps(ETA, 2)),
        _batches("feature-fedprox", given, replace(feature_prox, batch=3, lr=5.0), prox),
        _same("feature-fedavg", "is FedAvg with full gradients", given, feature_avg, FedAvg(ETA, 3, batch=None)),
        _same("kernel-fedavg", "with k = <phi, phi> is feature-fedavg", given, kernel_avg, feature_avg),
        _same("kernel-fedprox", "with k = <phi, phi> is feature-fedprox", given, kernel_prox, feature_prox),
        pooled_ridge("is pooled ridge after one round", 1),
    ]


def _rounds(name: str, given: Points, algorithm: Algorithm, kernel: theory.Kernel, method: theory.KernelStep) -> Case:
    """f after some rounds against the recursion, applied as often."""

    def measure(runtime: str) -> float:
        iterates = given.federation(kernel, method).rounds(np.concatenate(given.y))
        wanted = [f for _, f in zip(range(ROUNDS + 1), iterates, strict=False)][-1]
        return _apart(given.learned(given.run(algorithm, ROUNDS, runtime)), wanted)

    s = f", s = {method.s}" if isinstance(method, theory.GradientSteps) else ""
    return Case(name, f"Proposition 3: f <- f + eta K P (y - f){s}", measure, stackable=False)


def _limit(
    name: str, given: Points, algorithm: Algorithm, kernel: theory.Kernel, method: theory.KernelStep, rounds: int
) -> Case:
    def measure(runtime: str) -> float:
        wanted = theory.trajectory(given.federation(kernel, method), np.concatenate(given.y)).limit()
        return _apart(given.learned(given.run(algorithm, rounds, runtime)), wanted)

    return Case(name, "settles at the limit in closed form", measure, stackable=False)


def _batches(name: str, given: Points, algorithm: Algorithm, method: theory.KernelStep) -> Case:
    """Batches of three, in order, as an affine map of theta (Section 7.1)."""

    def measure(runtime: str) -> float:
        phi = [given.phi(x) for x in given.x]
        theta = theory.minibatch_round(phi, given.y, method, 3).power(ROUNDS)(np.zeros(phi[0].shape[1]))
        return _apart(given.learned(given.run(algorithm, ROUNDS, runtime)), np.concatenate(phi) @ theta)

    return Case(name, "batches: passes in order with eta/n_i on the batch's sum", measure, stackable=False)


def _same(name: str, statement: str, given: Points, first: Algorithm, other: Algorithm) -> Case:
    def measure(runtime: str) -> float:
        return _apart(*(given.learned(given.run(algorithm, ROUNDS, runtime)) for algorithm in (first, other)))

    return Case(name, statement, measure, stackable=False)


def pooled_ridge(statement: str, rounds: int, cohort: Sampling | None = None, penalty: float = 0.3) -> Case:
    """f at all samples against the normal equations of all of them."""

    def measure(runtime: str) -> float:
        given = Points.drawn()
        phi = np.concatenate([given.phi(x) for x in given.x])
        theta = np.linalg.solve(phi.T @ phi + penalty * np.eye(phi.shape[1]), phi.T @ np.concatenate(given.y))
        return _apart(given.learned(given.run(Ridge(penalty), rounds, runtime, cohort)), phi @ theta)

    return Case("ridge", statement, measure, stackable=False)


def _apart(a: Array, b: Array) -> float:
    return float(np.abs(a - b).max())

"""The quadratic that a federation's losses resemble between the start and their common optimum.

Hessians [d, d] of every client are taken at the first weights, half-way and at the optimum of the mean loss (Simpson's
rule, so that the mean gradient between the two ends is met); where losses are quadratic, one is exact. Gradients at the
optimum say how far clients pull apart there, single samples' gradients how noisy batches are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from parley.advise.linear import is_least_squares
from parley.advise.objective import Array, Objective, torch_on_one_thread
from parley.advise.plan.derivatives import Derivatives
from parley.core.tree import flat
from parley.data import ClientData
from parley.theory.forecast import LocalQuadratics, LocalWork
from parley.training.task import Task

LARGEST = 150
"""Parameters up to which all second derivatives are written out."""
_SIMPSON = ((0.0, 1 / 6), (0.5, 4 / 6), (1.0, 1 / 6))
_ITERATIONS = 500
_SKETCHED_ITERATIONS = 40
_MANY_STEPS = 50
_KRYLOV, _PULLS = 16, 10
"""Directions that large models are looked at along."""


@dataclass(frozen=True, eq=False)
class Resemblance:
    """Clients as quadratics, and how good a likeness that is."""

    clients: LocalQuadratics
    exact: bool
    """The losses are quadratic."""
    all_directions: bool
    """All directions were looked at."""
    start_loss: float
    least_loss: float
    """Where L-BFGS got on all samples together."""
    slope: float
    """The norm of the gradient there."""
    drift: float
    """How many times farther than the quadratic says clients move together in many local steps from the optimum: 1, or
    more where losses flatten away from it."""
    largest: float
    """The largest curvature of any client at any of the points looked at."""
    start_gradients: Array
    """[m, d]: every client's gradient at the first weights."""
    optimum: Array
    """[d]."""

    @property
    def excess(self) -> float:
        """How much there is to gain, by the loss itself."""
        return self.start_loss - self.least_loss


def resemblance(
    task: Task, data: Sequence[ClientData], shares: Array, batch: int | None, cohort: int | None, ridge: float = 0.0
) -> Resemblance:
    """Measure clients of a small model; `shares` [m] are the server's weights, `batch` samples make a step, and
    `ridge` / 2 times the squared weights are part of every loss."""
    with torch_on_one_thread():
        whole = ClientData(torch.cat([item.x for item in data]), torch.cat([item.y for item in data]))
        sizes = np.array([len(item) for item in data])
        mean = Objective(task, whole, ridge, np.repeat(shares / sizes, sizes))
        x0 = flat(task.initial())
        best, slope = mean.minimiser(x0, _ITERATIONS)
        functions = [Derivatives(Objective(task, item, ridge)) for item in data]
        exact = is_least_squares(task)
        points = ((1.0, 1.0),) if exact else _SIMPSON
        looked = [np.stack([function.hessian(x0 + at * (best - x0)) for function in functions]) for at, _ in points]
        A = np.einsum("p,pmij->mij", np.array([weight for _, weight in points]), np.stack(looked))
        largest = max(float(np.linalg.eigvalsh(hessians)[:, -1].max()) for hessians in looked)
        single = [function.sample_gradients(best) for function in functions]
        g = np.stack([item.mean(0) for item in single])
        first = np.stack([function.gradient(x0) for function in functions])
        noise = None if not batch or batch >= sizes.max() else np.stack([_covariance(item, batch) for item in single])
        begin, end = mean.value_and_gradient(x0)[0], mean.value_and_gradient(best)[0]
        clients = LocalQuadratics(_positive(A), g - shares @ g, shares, x0 - best, noise, cohort)
        drift = 1.0 if exact else _drift(functions, clients, best)
    return Resemblance(clients, exact, True, begin, end, slope, drift, largest, first, best)


def sketched(
    task: Task,
    data: Sequence[ClientData],
    shares: Array,
    batch: int | None,
    cohort: int | None,
    population: int,
    ridge: float = 0.0,
) -> Resemblance:
    """The same for a large model, along a few dozen directions: where L-BFGS goes, gradients, and a Krylov space.

    `data` are some of the `population` clients, `cohort` counts clients of all of them. What happens outside these
    directions is not seen, nor that curvature changes as a network learns.
    """
    with torch_on_one_thread():
        whole = ClientData(torch.cat([item.x for item in data]), torch.cat([item.y for item in data]))
        sizes = np.array([len(item) for item in data])
        mean = Objective(task, whole, ridge, np.repeat(shares / sizes, sizes))
        x0 = flat(task.initial())
        best, slope = mean.minimiser(x0, _SKETCHED_ITERATIONS)
        middle = (x0 + best) / 2
        functions = [Derivatives(Objective(task, item, ridge)) for item in data]
        ends = [np.stack([function.gradient(at) for function in functions]) for at in (x0, best)]
        V = _basis(mean, x0, best, middle, ends)
        A = np.stack([V.T @ function.products(middle, V) for function in functions])
        single = [function.sample_gradients(best, V) for function in functions]
        noise = None if not batch or batch >= sizes.max() else np.stack([_covariance(item, batch) for item in single])
        begin, end = mean.value_and_gradient(x0)[0], mean.value_and_gradient(best)[0]
        g = ends[1] @ V
        A = _positive(A)
        drawn = cohort
        if cohort is not None:  # so many of these clients scatter as much as the cohort does around all of them
            drawn = max(1, round(1 / (1 / cohort - 1 / population + 1 / len(data))))
        clients = LocalQuadratics(A, g - shares @ g, shares, (x0 - best) @ V, noise, drawn)
        drift = _drift(functions, clients, best)
    largest = float(np.linalg.eigvalsh(A)[:, -1].max())
    return Resemblance(clients, False, False, begin, end, slope, drift, largest, ends[0], best)


def _drift(functions: Sequence[Derivatives], clients: LocalQuadratics, best: Array) -> float:
    """The clients' mean displacement after many steps of size 1/L from the optimum, over the one that is forecast."""
    work = LocalWork("fedavg", 1 / clients.L, _MANY_STEPS)
    forecast = clients.p @ (clients.movers(work)[0] @ clients.g[:, :, None])[:, :, 0]
    moved = np.zeros_like(best)
    for share, function in zip(clients.p, functions, strict=True):
        x = best
        for _ in range(work.K):
            x = x - work.gamma * function.gradient(x)
        moved += share * (x - best)
    expected = float(np.linalg.norm(forecast))
    return max(1.0, float(np.linalg.norm(moved)) / expected) if expected > 0 else 1.0


def _basis(mean: Objective, x0: Array, best: Array, middle: Array, ends: Sequence[Array]) -> Array:
    """Orthonormal columns [d, r]: the way to go, a Krylov space of the mean Hessian, and what clients pull at."""
    directions = [best - x0]
    v = mean.value_and_gradient(x0)[1]
    for _ in range(_KRYLOV):
        directions.append(v)
        v = mean.product(middle, v / max(float(np.linalg.norm(v)), 1e-300))
        q = np.linalg.qr(np.stack(directions, axis=1))[0]
        v = v - q @ (q.T @ v)
    pulls = np.concatenate(ends)
    _, _, along = np.linalg.svd(pulls - pulls.mean(0), full_matrices=False)
    columns = np.stack([*directions, *along[:_PULLS]], axis=1)
    q, r = np.linalg.qr(columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300))
    return np.asarray(q[:, np.abs(np.diag(r)) > 1e-8])


def _covariance(gradients: Array, batch: int) -> Array:
    """Of the mean over a batch of these, drawn without replacement."""
    n = len(gradients)
    if batch >= n:
        return np.zeros((gradients.shape[1],) * 2)
    return np.asarray(np.cov(gradients.T, bias=True).reshape((gradients.shape[1],) * 2) * (n - batch) / (n - 1) / batch)


def _positive(A: Array) -> Array:
    """Without what curves downwards, which no quadratic method could follow."""
    values, vectors = np.linalg.eigh((A + A.transpose(0, 2, 1)) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.transpose(0, 2, 1))

"""What every library is asked to train: the quadratics of conformance, as a linear regression, in two settings.

The fixed points are computed from the definitions, in NumPy, with the weights a library was told to use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from parley.conformance.problem import QuadraticProblem, quadratic_problem
from parley.conformance.reference import affine_fixed_point, fednova_point
from parley.theory.surrogate import Quadratics
from parley.theory.theta import Array

LR = 0.1
Weights = Literal["samples", "clients"]


@dataclass(frozen=True)
class Setting:
    """How many samples each of the four clients has and how it goes through them in a round."""

    name: str
    sizes: tuple[int, ...]
    epochs: int
    batch: int

    @property
    def steps(self) -> tuple[int, ...]:
        """Local steps of each client."""
        return tuple(self.epochs * -(-n // self.batch) for n in self.sizes)

    @property
    def about(self) -> str:
        """In words."""
        if len(set(self.sizes)) == 1:
            return f"{self.sizes[0]} samples each, {self.steps[0]} full-batch steps, lr {LR:g}"
        sizes = ", ".join(map(str, self.sizes))
        return f"{sizes} samples, batches of {self.batch}, {min(self.steps)} to {max(self.steps)} steps, lr {LR:g}"


EQUAL = Setting("equal", (6, 6, 6, 6), epochs=3, batch=6)
UNEQUAL = Setting("unequal", (3, 6, 9, 12), epochs=1, batch=4)
SETTINGS = {setting.name: setting for setting in (EQUAL, UNEQUAL)}


@dataclass(frozen=True)
class Method:
    """A method as its paper has it."""

    name: str
    title: str
    goal: str
    """Where it settles, in words."""
    weights: Weights = "samples"
    """The paper's weights of clients of unequal size."""
    alpha: float = 0.0

    def point(self, setting: Setting, weights: Weights) -> Array:
        """Where it settles, [d]."""
        clients = weighted(setting, weights)
        if self.name in ("scaffold", "feddyn"):
            return clients.empirical_minimiser
        if self.name == "fednova":
            return fednova_point(clients, LR, setting.steps)
        return averaging_point(clients, setting.steps, self.alpha)


SURROGATE, OPTIMUM = "its surrogate's minimiser", "the optimum"
METHODS = {
    method.name: method
    for method in (
        Method("fedavg", "FedAvg", SURROGATE),
        Method("fedprox", "FedProx", SURROGATE, alpha=1.0),
        Method("scaffold", "SCAFFOLD", OPTIMUM, "clients"),
        Method("fednova", "FedNova", "its normalised surrogate's minimiser"),
        Method("feddyn", "FedDyn", OPTIMUM, "clients", alpha=2.0),
    )
}


@cache
def problem() -> QuadraticProblem:
    """Four quadratics in five dimensions, spectra in [1, 4]."""
    return quadratic_problem()


def weighted(setting: Setting, weights: Weights) -> Quadratics:
    """The clients with the weights of their samples, or equal ones."""
    drawn = problem().clients
    return Quadratics(drawn.A, drawn.c, np.array(setting.sizes, dtype=np.float64) if weights == "samples" else None)


def averaging_point(clients: Quadratics, steps: Sequence[int], alpha: float = 0.0) -> Array:
    """The fixed point of x <- sum_i p_i y_i, y_i after so many steps on f_i(y) + alpha/2 |y - x|^2, [d]."""

    def average(x: Array) -> Array:
        total = np.zeros_like(x)
        for A, c, p, K in zip(clients.A, clients.c, clients.p, steps, strict=True):
            y = x
            for _ in range(K):
                y = y - LR * (A @ (y - c) + alpha * (y - x))
            total += p * y
        return total

    return affine_fixed_point(average, clients.c.shape[1])


def question(method: Method, setting: Setting, weights: Weights, variant: str, rounds: Sequence[int]) -> dict[str, Any]:
    """What an adapter reads (adapters/protocol.py).

    Mean squared error over k rows is (1/k) |R x - t|^2, hence R = sqrt(k/2) A^(1/2).
    """
    given = problem()
    scale = np.sqrt(given.rows.shape[1] / 2)
    return {
        "method": method.name,
        "variant": variant,
        "lr": LR,
        "epochs": setting.epochs,
        "batch": setting.batch,
        "alpha": method.alpha,
        "weights": weights,
        "rounds": list(rounds),
        "rows": (scale * given.rows).tolist(),
        "targets": (scale * given.targets).tolist(),
        "sizes": list(setting.sizes),
        "start": given.start.tolist(),
    }

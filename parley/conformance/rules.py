"""Update rules from elsewhere, held against their promise: any object with `init` and `round` over NumPy vectors.

    class MyFedAvg:
        promise = Surrogate(lr=0.1, theta=3)

        def init(self, d, weights):            # a fresh start; weights p_i sum to one
            self.weights = weights

        def round(self, x, gradient):          # x [d] -> the next x; gradient(i, y) is exact
            moved = 0
            for i, p in enumerate(self.weights):
                y = x
                for _ in range(3):
                    y = y - 0.1 * gradient(i, y)
                moved = moved + p * (y - x)
            return x + moved

    check_rule(MyFedAvg())                     # or: parley conformance my_rules.py:MyFedAvg

The spectra of the clients lie in [1, 4], so local steps below 0.25 are stable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, runtime_checkable

import numpy as np

from parley.algorithms.protocol import Algorithm
from parley.conformance.case import TOLERANCE
from parley.conformance.check import Check, at_most
from parley.conformance.problem import QuadraticProblem, quadratic_problem
from parley.conformance.promises import Promise
from parley.core.errors import InputError
from parley.core.plugins import from_file, is_file_name
from parley.theory.surrogate import Quadratics
from parley.theory.theta import Array

GradientAt = Callable[[int, Array], Array]
Trainer = Callable[[list[tuple[Array, Array]], Array, int], Array]

_ROUNDS = 20_000
_DIVERGED = 1e100


@runtime_checkable
class UpdateRule(Protocol):
    """A federated method as functions over vectors."""

    @property
    def promise(self) -> Promise:
        """Where it should settle."""

    def init(self, d: int, weights: Array) -> None:
        """Forget everything; `weights` [clients] sum to one."""

    def round(self, x: Array, gradient: GradientAt) -> Array:
        """The model after a round from x [d]; `gradient(i, y)` is client i's exact gradient at y."""


def check_rule(rule: UpdateRule, name: str | None = None) -> list[Check]:
    """The rule on three heterogeneous problems, and on a single client, whose own optimum all methods share."""
    label = name or type(rule).__name__
    checks = []
    for seed in range(3):
        given = quadratic_problem(seed)
        checks.append(_settles(rule, given, given.clients, f"{label}: four clients, problem {seed + 1}"))
    problem = quadratic_problem(0).alone()
    checks.append(_settles(rule, problem, problem.clients, f"{label}: one client"))
    return checks


def check_update(
    update: Callable[[Array, GradientAt, Array], Array], promise: Promise, name: str | None = None
) -> list[Check]:
    """The same for a function without memory: update(x, gradient, weights) is the model after a round from x."""
    return check_rule(_Update(update, promise), name or getattr(update, "__name__", "update"))


def check_trainer(
    train: Trainer, promise: Promise, name: str | None = None, rounds: int = 300, tolerance: float = 1e-5
) -> list[Check]:
    """A whole trainer from elsewhere: train(clients, start, rounds) gives the model after so many rounds, [d].

    `clients` are pairs of inputs [k, d] and targets [k]. With a linear model without bias and the mean squared error of
    the whole batch, each client's loss is one of the quadratics; clients count equally. Distances are relative to the
    start's; `tolerance` leaves room for float32.
    """
    label = name or getattr(train, "__name__", "trainer")
    checks = []
    for seed in range(3):
        given = quadratic_problem(seed)
        # (1/k) |X x - y|^2 = 1/2 (x - c)' A (x - c) for X = sqrt(k/2) A^(1/2).
        scale = np.sqrt(given.rows.shape[1] / 2)
        data = [(scale * rows, scale * y) for rows, y in zip(given.rows, given.targets, strict=True)]
        goal = promise.point(given.uniform())
        reached = np.asarray(train(data, given.start.copy(), rounds), dtype=np.float64).reshape(-1)
        off = float(np.linalg.norm(reached - goal) / np.linalg.norm(given.start - goal))
        checks.append(at_most(f"{label}: four clients, problem {seed + 1}", off if off == off else np.inf, tolerance))
    return checks


@dataclass
class _Update:
    """A function as a rule."""

    update: Callable[[Array, GradientAt, Array], Array]
    promise: Promise

    def init(self, d: int, weights: Array) -> None:
        self.weights = weights

    def round(self, x: Array, gradient: GradientAt) -> Array:
        return self.update(x, gradient, self.weights)


def load_method(path: str) -> Algorithm | UpdateRule:
    """The method or update rule called `file.py:name` or `package.module:name`; a class is made without arguments."""
    home, _, name = path.rpartition(":")
    try:
        named = from_file(path) if is_file_name(path) else getattr(import_module(home), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"'{path}' is neither package.module:name nor file.py:name: {error}.") from None
    try:
        method = named() if isinstance(named, type) else named
    except TypeError as error:
        raise InputError(
            f"'{path}' cannot be made without arguments ({error}); write checked = {name}(...) into the file and give "
            f"{home}:checked."
        ) from None
    if not isinstance(method, Algorithm | UpdateRule):
        raise InputError(
            f"'{path}' is no method: derive it from parley.Algorithm, or give it promise, init(d, weights) and "
            "round(x, gradient)."
        )
    return method


def _settles(rule: UpdateRule, given: QuadraticProblem, clients: Quadratics, name: str) -> Check:
    rule.init(len(given.start), clients.p)
    x, quiet = given.start, 0
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(_ROUNDS):
            new = np.asarray(rule.round(x, lambda i, y: clients.A[i] @ (y - clients.c[i])), dtype=np.float64)
            if not np.abs(new).max() < _DIVERGED:
                return at_most(name, float("inf"), TOLERANCE)
            # A cycle or a pause of the method itself must not be taken for the end.
            quiet = quiet + 1 if np.linalg.norm(new - x) <= 1e-14 * (1 + np.linalg.norm(new)) else 0
            x = new
            if quiet == 50:
                break
    return at_most(name, float(np.linalg.norm(x - rule.promise.point(clients))), TOLERANCE)

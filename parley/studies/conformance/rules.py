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
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Protocol, runtime_checkable

import numpy as np

from parley.core.errors import InputError
from parley.studies.conformance.case import TOLERANCE
from parley.studies.conformance.problem import QuadraticProblem, quadratic_problem
from parley.studies.conformance.promises import Promise
from parley.studies.harness import Check, at_most
from parley.theory.surrogate import Quadratics
from parley.theory.theta import Array

GradientAt = Callable[[int, Array], Array]

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
    one = quadratic_problem(0).alone()
    checks.append(_settles(rule, one, one.clients, f"{label}: one client"))
    return checks


def load_rule(path: str) -> UpdateRule:
    """The rule called `package.module:name` or `file.py:name`; a class is made without arguments."""
    place, _, name = path.rpartition(":")
    try:
        found = getattr(_module(place), name)
    except (ImportError, AttributeError, OSError) as error:
        raise InputError(f"'{path}' is neither package.module:name nor file.py:name: {error}.") from None
    rule = found() if isinstance(found, type) else found
    if not isinstance(rule, UpdateRule):
        raise InputError(f"'{path}' is no update rule: it needs promise, init(d, weights) and round(x, gradient).")
    return rule


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return import_module(place)
    spec = spec_from_file_location(Path(place).stem, place)
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no module in {place}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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

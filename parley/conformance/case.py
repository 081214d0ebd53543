"""A line of the table: a method, what is said of it, and a number that must not be too large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from parley.algorithms.protocol import Algorithm
from parley.conformance.check import Check, at_most
from parley.conformance.problem import QuadraticProblem, weights_of
from parley.engine.settings import Faults, Sampling
from parley.theory.theta import Array

TOLERANCE = 1e-10


@dataclass(frozen=True)
class Case:
    """`measure(runtime)` gives a distance; 0 as tolerance means the same bits."""

    method: str
    statement: str
    measure: Callable[[str], float]
    tolerance: float = TOLERANCE
    stackable: bool = True
    """The runtime 'stacked' takes the method too."""

    def check(self, runtime: str) -> Check:
        return at_most(f"{self.method}: {self.statement} ({runtime})", self.measure(runtime), self.tolerance)


def settles(
    method: str,
    statement: str,
    given: QuadraticProblem,
    algorithm: Algorithm,
    goal: Array,
    rounds: int,
    cohort: Sampling | None = None,
    faults: Faults | None = None,
) -> Case:
    """The engine's model after `rounds` against the point where it should settle."""

    def measure(runtime: str) -> float:
        run = given.run(algorithm, rounds, runtime, cohort, faults)
        return float(np.linalg.norm(weights_of(run) - goal))

    return Case(method, statement, measure)


def equals(
    method: str, statement: str, given: QuadraticProblem, first: tuple[Algorithm, int], other: tuple[Algorithm, int]
) -> Case:
    """Two methods after so many rounds: the same bits."""

    def measure(runtime: str) -> float:
        a, b = (weights_of(given.run(algorithm, rounds, runtime)) for algorithm, rounds in (first, other))
        return float(np.abs(a - b).max())

    return Case(method, statement, measure, 0.0)

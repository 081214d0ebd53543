"""A user's method, run through the engine on the quadratics and checked against its promise.

@dataclass(frozen=True)
class MyMethod(pl.FedAvg):
    @property
    def promise(self):                     # or, where the settings do not matter: promise = Optimum()
        return Surrogate(self.lr, self.steps)

checks = [case.check("inline") for case in method_cases(MyMethod(lr=0.1, steps=3))]
parley conformance my_method.py:MyMethod   # a class, made without arguments, or an instance in the file
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from parley.algorithms.protocol import Algorithm
from parley.conformance.case import TOLERANCE, Case
from parley.conformance.problem import QuadraticProblem, quadratic_problem
from parley.conformance.promises import Averaged, Promise
from parley.core.errors import InputError, StopRun, UnsupportedError
from parley.core.message import Message
from parley.core.tree import flat
from parley.data import Federation
from parley.data.sources import InMemory
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.store.records import RoundRecord
from parley.theory.surrogate import Quadratics
from parley.theory.theta import Array

_ROUNDS = 4_000
_DIVERGED = 1e100
_NOTHING = Evaluation(central=False, clients="none")
_HALF = Sampling(size=2)
_EVEN = Sampling(weights="uniform")
_LOSSY = Faults(dropout=0.3, quorum=0.0)


def method_cases(method: Algorithm, name: str | None = None) -> list[Case]:
    """What is said of a method with a promise: its point on three problems and alone, and with part of the clients."""
    promise, label, stacks = _promise(method), name or method.title, refusal(method) is None
    within = promise.within if isinstance(promise, Averaged) else TOLERANCE
    problems = {f"problem {seed + 1}": quadratic_problem(seed) for seed in range(3)}
    problems["one client"] = quadratic_problem(0).alone()

    def case(
        what: str, given: QuadraticProblem, clients: Quadratics, cohort: Sampling | None, faults: Faults | None
    ) -> Case:
        def measure(runtime: str) -> float:
            return _largest(_settled(method, promise, given, runtime, cohort, faults) - promise.point(clients))

        return Case(label, what, measure, within, stacks)

    cases = [
        case(f"settles at its point, {where}", given, given.clients, None, None) for where, given in problems.items()
    ]
    given = problems["problem 1"]
    if getattr(promise, "partial", False):
        cases.append(case("settles at its point, 2 of 4 clients", given, given.clients, _HALF, None))
        cases.append(case("settles at its point, replies lost", given, given.uniform(), _EVEN, _LOSSY))
    elif all(each.asks != "everyone" for each in method.exchanges()):
        what = "2 of 4 clients: a round is that of the two drawn"
        cases.append(Case(label, what, lambda runtime: _off_those_drawn(method, given, runtime), TOLERANCE, stacks))
    return cases


def refusal(method: Algorithm) -> str | None:
    """Why the runtime 'stacked' does not take the method; None if it does."""
    try:
        quadratic_problem().run(method, 1, "stacked")
    except UnsupportedError as error:
        return str(error)
    return None


def _promise(method: Algorithm) -> Promise:
    promise: Promise | None = getattr(method, "promise", None)
    if promise is None or not callable(getattr(promise, "point", None)):
        raise InputError(
            f"{method.title} does not say where it settles; give the class a `promise` from parley.conformance, "
            "such as promise = Optimum(), or any object with point(clients)."
        )
    return promise


class _Iterates(Listener):
    """The models of the last rounds; ends a run that has come to rest or has run away."""

    def __init__(self, last: int) -> None:
        self.models: deque[Array] = deque(maxlen=last)
        self.quiet = 0

    def start(self, run: Run, rounds: int) -> None:
        self.run = run

    def round(self, record: RoundRecord) -> None:
        if lost := [each for each in record.failures if "simulated" not in each.reason]:
            raise InputError(f"client '{lost[0].client}' failed in round {record.number}: {lost[0].reason}")
        new = models_of(self.run)
        if not np.abs(new).max() < _DIVERGED:
            self.models.append(np.full_like(new, np.inf))
            raise StopRun
        before = self.models[-1] if self.models and self.models[-1].shape == new.shape else np.inf
        # A pause of the method itself, or rounds in which nobody answers, must not be taken for the end.
        self.quiet = self.quiet + 1 if np.abs(new - before).max() <= 1e-14 * (1 + np.abs(new).max()) else 0
        self.models.append(new)
        if self.quiet == 50:
            self.models = deque([new])  # at rest, the models on the way to it do not count
            raise StopRun


def models_of(run: Run) -> Array:
    """The model of a run, [1, d]; of a method with personal ones those of all clients that have one, [clients, d]."""
    message, learned = run.model(), run.learned
    memories = [run.memory(client) for client in run.clients_with_memory()] if learned.personal else [None]
    weights = [learned.weights(message, memory) for memory in memories]
    if any(each is None for each in weights):
        raise InputError(f"{run.algorithm.title} learns no weights of a network, so no point can be read off it.")
    return np.stack([flat(each) for each in weights if each is not None]) if weights else np.zeros((1, 1))


def _settled(
    method: Algorithm,
    promise: Promise,
    given: QuadraticProblem,
    runtime: str,
    cohort: Sampling | None,
    faults: Faults | None,
) -> Array:
    """The model after the last round, or the mean of the last ones."""
    last, rounds = (promise.last, promise.rounds) if isinstance(promise, Averaged) else (1, _ROUNDS)
    iterates = _Iterates(last)
    given.run(method, rounds, runtime, cohort, faults, (iterates,), evaluation=_NOTHING)
    return np.asarray(np.mean(iterates.models, axis=0))


def _largest(off: Array) -> float:
    return float(np.linalg.norm(off, axis=-1).max())


class _Asked(Listener):
    """The clients of a round."""

    def __init__(self) -> None:
        self.ids: dict[str, None] = {}

    def exchange(
        self, number: int, index: int, asked: str, sent: Mapping[Any, Message], replies: Mapping[Any, Message]
    ) -> None:
        self.ids |= {client: None for client in sent if isinstance(client, str)}


def _off_those_drawn(method: Algorithm, given: QuadraticProblem, runtime: str) -> float:
    """A round with two clients drawn against the round of a federation that has only these two."""
    asked, federation = _Asked(), given.federation()
    sampled = models_of(given.run(method, 1, runtime, _HALF, listeners=(asked,)))
    ids = tuple(client for client in federation.ids if client in asked.ids)
    few = Federation(federation.info, ids, InMemory(tuple(federation.client(client) for client in ids)))
    return _largest(sampled - models_of(given.run(method, 1, runtime, federation=few)))

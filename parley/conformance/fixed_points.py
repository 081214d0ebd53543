"""Where every method must settle on four heterogeneous quadratics with exact local gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from parley.algorithms.averaging.baselines import LocalOnly
from parley.algorithms.averaging.datashare import DataShare
from parley.algorithms.averaging.feddyn import FedDyn
from parley.algorithms.averaging.fednova import FedNova
from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.averaging.server import Adaptive
from parley.algorithms.parts.fedals import FedALS
from parley.algorithms.parts.fedals_scaffold import FedALSScaffold
from parley.algorithms.wrappers.richardson_romberg import RichardsonRomberg
from parley.conformance import reference
from parley.conformance.case import TOLERANCE, Case, settles
from parley.conformance.members import members
from parley.conformance.problem import QuadraticProblem, quadratic_problem, weights_of
from parley.conformance.quadratics import QuadraticSetting
from parley.core.message import Message
from parley.core.tree import flat
from parley.engine.listeners import Listener
from parley.engine.settings import Faults, Sampling
from parley.theory.surrogate import All, Quadratics
from parley.theory.theta import Array

LR, STEPS = 0.1, 3
SHARING = DataShare(lr=LR, steps=STEPS, batch=None, share=0.2)
HALF_UNIFORM = Sampling(size=2, weights="uniform")
UNBIASED = Sampling(size=2, scheme="unbiased")
EVEN = Sampling(weights="uniform")
LOSSY = Faults(dropout=0.3, quorum=0.0)
HEAVY = {"momentum": 0.9}


def family() -> list[Case]:
    """Charles and Konečný's family and the pooled baselines (Theorems 1 and 2, Lemma 11)."""
    given = quadratic_problem()
    setting = QuadraticSetting(given.clients, given.sizes, given.start)
    cases = []
    for member in members(setting, STEPS, TOLERANCE):
        says = "the true optimum" if member.method.needs.pooled else "the minimiser of its surrogate"
        name, _, which = member.name.partition(", ")
        statement = f"settles at {says}{', ' + which if which else ''}"
        # Adaptive servers need longer here, where the start is farther away, until their second moments have settled.
        rounds = member.rounds * (2 if isinstance(member.method.server, Adaptive) else 1)
        cases.append(settles(name, statement, given, member.method, member.goal(given.clients), rounds))
    return cases


def corrected() -> list[Case]:
    """SCAFFOLD and FedDyn: the true optimum, whoever takes part."""
    given = quadratic_problem()
    best, even = given.clients.empirical_minimiser, given.uniform().empirical_minimiser
    scaffold = Scaffold(lr=LR, steps=STEPS, batch=None)
    heavy = replace(scaffold, lr=0.02, options=HEAVY)
    dyn = FedDyn(lr=LR, steps=2 * STEPS, batch=None, alpha=2.0)
    whole = "settles at the true optimum"
    return [
        settles("scaffold", f"{whole}, option II", given, scaffold, best, 80),
        settles("scaffold", f"{whole}, option I", given, replace(scaffold, option="I"), best, 80),
        settles("scaffold", f"{whole}, clients with 1 to 4 steps", given, _uneven(scaffold), best, 80),
        settles("scaffold", f"{whole}, momentum .9 afresh", given, heavy, best, 215),
        settles("scaffold", f"{whole}, momentum .9 running through", given, replace(heavy, keep=True), best, 210),
        settles("scaffold", f"{whole}, 2 of 4 clients", given, scaffold, even, 95, HALF_UNIFORM),
        settles("scaffold", f"{whole}, 2 of 4 clients, unbiased", given, scaffold, best, 100, UNBIASED),
        settles("scaffold", f"{whole}, replies lost", given, scaffold, even, 85, EVEN, LOSSY),
        settles("feddyn", whole, given, dyn, best, 65),
        settles("feddyn", f"{whole}, mean of the clients", given, replace(dyn, report="mean"), best, 65),
        settles("feddyn", f"{whole}, 2 of 4 clients", given, dyn, even, 150, HALF_UNIFORM),
        settles("feddyn", f"{whole}, replies lost", given, dyn, even, 100, EVEN, LOSSY),
    ]


def normalised() -> list[Case]:
    """FedNova with clients that take 1, 2, 3 and 4 steps."""
    given = quadratic_problem()
    nova = _uneven(FedNova(lr=LR, steps=1))
    steps = (1, 2, 3, 4)
    plain, heavy = (reference.fednova_point(given.clients, LR, steps, beta) for beta in (0.0, 0.9))
    return [
        settles("fednova", "settles at its normalised surrogate, 1 to 4 steps", given, nova, plain, 80),
        settles(
            "fednova",
            "settles at its normalised surrogate, momentum .9",
            given,
            replace(nova, options=HEAVY),
            heavy,
            40,
        ),
    ]


def extrapolated() -> list[Case]:
    """Richardson-Romberg: 2 x(lr) - x(2 lr) of the points of its two runs, whose bias is of second order."""
    given, steps = quadratic_problem(), (1, 2, 3, 4)
    small = LR / 2
    plain = RichardsonRomberg(FedAvg(lr=small, steps=STEPS, batch=None))
    nova = RichardsonRomberg(FedNova(lr=small, epochs=1, batch=3))
    point = 2 * given.clients.minimiser(small, All(STEPS)) - given.clients.minimiser(2 * small, All(STEPS))
    normal = 2 * reference.fednova_point(given.clients, small, steps) - reference.fednova_point(
        given.clients, 2 * small, steps
    )
    name = "richardson-romberg"
    return [
        settles(name, "settles at 2 x(lr) - x(2 lr)", given, plain, point, 150),
        settles(name, "the same of FedNova, clients with 1 to 4 steps", given, nova, normal, 150),
        Case(name, "half of lr, a quarter of the bias: order off 2", second_order, 0.15),
    ]


def second_order(runtime: str, method: FedAvg | None = None) -> float:
    """How far the order in lr of the distance to the optimum is from 2, between lr = .02 and .01."""
    given, distances = quadratic_problem(), []
    for lr in (0.02, 0.01):
        base = replace(method or FedAvg(steps=5, batch=None), lr=lr)
        reached = weights_of(given.run(RichardsonRomberg(base), round(4 / lr), runtime))
        distances.append(float(np.linalg.norm(reached - given.clients.empirical_minimiser)))
    return abs(float(np.log2(distances[0] / distances[1])) - 2)


def parts() -> list[Case]:
    """FedALS right after an average of phi, and with control variates."""
    given, apart = quadratic_problem(), quadratic_problem(coupled=False)
    als = FedALS(lr=LR, steps=2, batch=None, alpha=3, layers=1)
    heavy = replace(als, lr=0.02, options=HEAVY)
    goal = reference.fedals_point(given.clients, LR, 2, 3, given.phi)
    momentum = reference.fedals_point(given.clients, 0.02, 2, 3, given.phi, 0.9)
    uncoupled = np.concatenate(
        [apart.clients.minimiser(LR, All(6))[: apart.phi], apart.clients.minimiser(LR, All(2))[apart.phi :]]
    )
    both = FedALSScaffold(lr=0.05, steps=2, batch=None, alpha=3, layers=1)
    best, even = given.clients.empirical_minimiser, given.uniform().empirical_minimiser
    return [
        settles("fedals", "settles at the fixed point of its affine map", given, als, goal, 126),
        settles("fedals", "the same with momentum .9 running through", given, heavy, momentum, 276),
        settles("fedals", "uncoupled parts: surrogates of alpha tau and tau steps", apart, als, uncoupled, 105),
        settles("fedals-scaffold", "settles at the true optimum", given, both, best, 240),
        settles(
            "fedals-scaffold",
            "settles at the true optimum, momentum .9",
            given,
            replace(both, lr=0.005, options=HEAVY),
            best,
            360,
        ),
        settles("fedals-scaffold", "settles at the true optimum, 2 of 4 clients", given, both, even, 345, HALF_UNIFORM),
        settles("fedals-scaffold", "settles at the true optimum, replies lost", given, both, even, 276, EVEN, LOSSY),
    ]


def shared() -> list[Case]:
    """DataShare: FedAvg's surrogate on the clients with the global set; and clients on their own."""
    given = quadratic_problem()
    goal = joined(given, SHARING).minimiser(LR, All(STEPS))
    return [
        replace(
            settles("datashare", "settles at FedAvg's point on the shared data", given, SHARING, goal, 85),
            stackable=False,
        ),
        Case("local-only", "every client settles at its own optimum", local_optima),
    ]


class _Shared(Listener):
    """How many rows each client puts into the global set."""

    def exchange(
        self, number: int, index: int, asked: str, sent: Mapping[Any, Message], replies: Mapping[Any, Message]
    ) -> None:
        if asked == "shared_rows":
            self.rows = {client: len(reply["rows"]["y"]) for client, reply in replies.items()}


def joined(given: QuadraticProblem, method: DataShare) -> Quadratics:
    """The clients' losses once the global set has joined them; their weights stay those of their own samples.

    A client's samples are all alike, so what it has left and the global set follow from how many rows each has shared.
    """
    seen = _Shared()
    given.run(method, 1, listeners=(seen,))
    shared = np.array([seen.rows[str(i)] for i in range(len(given.sizes))], dtype=np.float64)
    assert shared.sum() > 0
    counts = np.diag(np.array(given.sizes) - shared) + shared  # [client, whose samples]
    shares = counts / counts.sum(axis=1, keepdims=True)
    A = np.einsum("ij,jkl->ikl", shares, given.clients.A)
    Ac = np.einsum("ij,jkl,jl->ik", shares, given.clients.A, given.clients.c)
    return Quadratics(A, np.linalg.solve(A, Ac[..., None])[..., 0], np.array(given.sizes, dtype=np.float64))


class _Models(Listener):
    """Every client's model after the last round it took part in."""

    wants = ("model",)

    def __init__(self) -> None:
        self.models: dict[str, Array] = {}

    def observe(self, number: int, observed: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.models |= {
            client: flat({name: value for name, value in seen.items() if name.startswith("model/")})
            for client, seen in observed.items()
        }


def local_optima(runtime: str, cohort: Sampling | None = None) -> float:
    """How far local-only's models are from their clients' optima, at most."""
    given, seen = quadratic_problem(), _Models()
    given.run(LocalOnly(lr=LR, steps=STEPS, batch=None), 90 if cohort is None else 250, runtime, cohort, None, (seen,))
    return max(float(np.linalg.norm(seen.models[str(i)] - c)) for i, c in enumerate(given.clients.c))


def _uneven(method: Scaffold | FedNova) -> Scaffold | FedNova:
    """Sizes 3, 6, 9, 12 and batches of 3: one to four steps, every one with the exact gradient."""
    return replace(method, steps=None, epochs=1, batch=3)

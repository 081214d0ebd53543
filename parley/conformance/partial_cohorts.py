"""Two of four clients of unequal sizes a round, with the sampling a study gets by default: what holds for each method.

Methods that correct for drift, train alone or pool the data settle where they do with everybody. All others move on
with every draw and never settle; of them it is said, and checked, that a round is exactly the round of the clients
drawn, their weights p_k scaled to sum to one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from parley.algorithms.averaging.feddyn import FedDyn
from parley.algorithms.averaging.fednova import FedNova
from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.kernel.exact import KernelFedAvg, KernelFedProx
from parley.algorithms.kernel.features import FeatureFedAvg, FeatureFedProx
from parley.algorithms.ntk.cp_ntk_fl import CpNtkFL
from parley.algorithms.ntk.ntk_fl import NtkFL
from parley.algorithms.parts.fedals import FedALS
from parley.algorithms.parts.fedals_scaffold import FedALSScaffold
from parley.algorithms.personal.ditto import Ditto
from parley.algorithms.personal.fedbabu import FedBABU
from parley.algorithms.personal.fedrep import FedRep
from parley.algorithms.personal.moon import MOON
from parley.algorithms.protocol import Algorithm
from parley.algorithms.wrappers.ema import EMA
from parley.algorithms.wrappers.richardson_romberg import RichardsonRomberg
from parley.conformance.case import TOLERANCE, Case, settles
from parley.conformance.fixed_points import SHARING, joined, local_optima
from parley.conformance.kernel_cases import ETA, Points, pooled_ridge
from parley.conformance.members import members
from parley.conformance.problem import quadratic_problem, weights_of
from parley.conformance.quadratics import QuadraticSetting
from parley.conformance.reference import heavy_ball
from parley.conformance.tct_cases import convexified_half
from parley.core.message import Message
from parley.data import Federation
from parley.data.sources import InMemory
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Sampling
from parley.theory import kernel as theory
from parley.theory.theta import Array

LR, STEPS = 0.1, 3
HALF = Sampling(size=2)
"""The default scheme and weights: without replacement, by size."""
SETTLES = "settles at the true optimum, 2 of 4 clients by default sampling"
MOVES = "2 of 4 clients: never settles, each round is that of the two drawn"
Runner = Callable[[Algorithm, Federation, Sampling | None, str, tuple[Listener, ...]], Run]


class Drawn(Listener):
    """The clients that trained in the last round."""

    def exchange(
        self, number: int, index: int, asked: str, sent: Mapping[Any, Message], replies: Mapping[Any, Message]
    ) -> None:
        if asked.endswith("client"):
            self.ids = tuple(replies)


def partial() -> list[Case]:
    """One case per method."""
    return [*_settling(), *_pooled(), *_moving(), *_kernels()]


def _settling() -> list[Case]:
    given = quadratic_problem()
    best = given.clients.empirical_minimiser
    scaffold = Scaffold(lr=LR, steps=STEPS, batch=None)
    dyn = FedDyn(lr=LR, steps=2 * STEPS, batch=None, alpha=2.0)
    both = FedALSScaffold(lr=0.05, steps=2, batch=None, alpha=3, layers=1)
    return [
        settles("scaffold", SETTLES, given, scaffold, best, 200, HALF),
        settles("feddyn", SETTLES, given, dyn, best, 250, HALF),
        settles("fedals-scaffold", SETTLES, given, both, best, 540, HALF),
        Case(
            "local-only",
            "every client settles at its own optimum, 2 of 4 clients by default sampling",
            lambda runtime: local_optima(runtime, HALF),
        ),
        pooled_ridge("2 of 4 clients: is pooled ridge once everybody was drawn", 12, HALF),
        convexified_half(HALF),
    ]


def _pooled() -> list[Case]:
    """Data in one place are never absent, whatever the cohort."""
    given = quadratic_problem()
    setting = QuadraticSetting(given.clients, given.sizes, given.start)
    return [
        settles(member.name, SETTLES, given, member.method, member.goal(given.clients), member.rounds, HALF)
        for member in members(setting, STEPS, TOLERANCE)
        if member.method.needs.pooled
    ]


def _moving() -> list[Case]:
    given = quadratic_problem()
    federation = given.federation()

    def run(
        algorithm: Algorithm, on: Federation, cohort: Sampling | None, runtime: str, listeners: tuple[Listener, ...]
    ) -> Run:
        return given.run(algorithm, 1, runtime, cohort, listeners=listeners, federation=on)

    setting = QuadraticSetting(given.clients, given.sizes, given.start)
    family = {
        m.name: m.method for m in members(setting, STEPS, TOLERANCE) if not m.method.needs.pooled and ", " not in m.name
    }
    methods: dict[str, Algorithm] = {
        **family,
        "fednova": FedNova(lr=LR, epochs=1, batch=3),
        "fedals": FedALS(lr=LR, steps=2, batch=None, alpha=1, layers=1),
        "fedrep": FedRep(lr=LR, steps=2, batch=None, layers=1, head_steps=2),
        "fedbabu": FedBABU(lr=LR, steps=2, batch=None, layers=1),
        "ditto": Ditto(lr=LR, steps=2, batch=None),
        "ema": EMA(of=FedAvg(lr=LR, steps=2, batch=None), decay=0.5),
        "richardson-romberg": RichardsonRomberg(FedAvg(lr=LR, steps=2, batch=None)),
        "moon": MOON(lr=LR, steps=2, batch=None),
    }
    drawn = [
        replace(_drawn(name, run, weights_of, federation, method), stackable=name != "moon")
        for name, method in methods.items()
    ]
    return [*drawn, Case("datashare", MOVES, _shared_round, stackable=False)]


def _shared_round(runtime: str) -> float:
    """The clients drawn share their rows with everybody, so a federation of these two alone is another one."""
    given, drawn = quadratic_problem(), Drawn()
    clients = joined(given, SHARING)
    weights = weights_of(given.run(SHARING, 1, runtime, HALF, listeners=(drawn,)))
    chosen = [int(client) for client in drawn.ids]
    assert len(chosen) == HALF.size
    still = np.zeros_like(given.start)
    ends = [heavy_ball(clients.A[i], clients.c[i], given.start, still, LR, STEPS, 0.0)[0] for i in chosen]
    return float(np.linalg.norm(weights - np.average(ends, axis=0, weights=clients.p[chosen])))


def _kernels() -> list[Case]:
    given = Points.drawn()
    features = theory.FeatureKernel(given.phi)

    def run(
        algorithm: Algorithm, on: Federation, cohort: Sampling | None, runtime: str, listeners: tuple[Listener, ...]
    ) -> Run:
        return given.run(algorithm, 1, runtime, cohort, on, listeners)

    methods: dict[str, Algorithm] = {
        "kernel-fedavg": KernelFedAvg(ETA, kernel=features, steps=3),
        "kernel-fedprox": KernelFedProx(ETA, kernel=features),
        "feature-fedavg": FeatureFedAvg(ETA, steps=3),
        "feature-fedprox": FeatureFedProx(ETA),
        "ntk-fl": NtkFL(ETA, times=(3, 7), loss="mse", dynamics="steps"),
        "cp-ntk-fl": CpNtkFL(ETA, times=(3, 7), loss="mse", dynamics="steps", upload="dense", projection=0),
    }
    federation = given.data()
    return [
        replace(_drawn(name, run, given.learned, federation, method), stackable=False)
        for name, method in methods.items()
    ]


def _drawn(name: str, run: Runner, read: Callable[[Run], Array], federation: Federation, method: Algorithm) -> Case:
    """A round with two clients drawn against the round of a federation that has only these two."""

    def measure(runtime: str) -> float:
        drawn = Drawn()
        sampled = run(method, federation, HALF, runtime, (drawn,))
        assert len(drawn.ids) == HALF.size
        other = run(method, _restricted(federation, drawn.ids), None, runtime, ())
        return float(np.abs(read(sampled) - read(other)).max())

    return Case(name, MOVES, measure)


def _restricted(federation: Federation, ids: tuple[str, ...]) -> Federation:
    """The federation of these clients only."""
    return Federation(federation.info, ids, InMemory(tuple(federation.client(client) for client in ids)))

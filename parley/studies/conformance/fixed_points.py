"""Where every method must settle on four heterogeneous quadratics with exact local gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor

from parley.advise.objective import flat
from parley.algorithms.baselines import LocalOnly
from parley.algorithms.datashare import DataShare
from parley.algorithms.fedals import FedALS, FedALSScaffold
from parley.algorithms.feddyn import FedDyn
from parley.algorithms.fednova import FedNova
from parley.algorithms.scaffold import Scaffold
from parley.algorithms.server import Adaptive
from parley.engine.listeners import Listener
from parley.engine.settings import Faults, Sampling
from parley.studies.conformance import reference
from parley.studies.conformance.case import TOLERANCE, Case, settles
from parley.studies.conformance.problem import problem
from parley.studies.paper001.members import members
from parley.studies.paper001.quadratics import Setting
from parley.study.train import prepared
from parley.theory.surrogate import All, Quadratics

LR, STEPS = 0.1, 3
HALF = Sampling(size=2, weights="uniform")
UNBIASED = Sampling(size=2, scheme="unbiased")
EVEN = Sampling(weights="uniform")
LOSSY = Faults(dropout=0.3, quorum=0.0)
HEAVY = {"momentum": 0.9}


def family() -> list[Case]:
    """Paper 001's family and the pooled baselines (Theorems 1 and 2, Lemma 11)."""
    given = problem()
    setting = Setting(given.clients, given.sizes, given.start)
    cases = []
    for member in members(setting, STEPS, TOLERANCE):
        says = "the true optimum" if member.method.pooled else "the minimiser of its surrogate"
        name, _, which = member.name.partition(", ")
        statement = f"settles at {says}{', ' + which if which else ''}"
        # Adaptive servers need longer here, where the start is farther away, until their second moments have settled.
        rounds = member.rounds * (2 if isinstance(member.method.server, Adaptive) else 1)
        cases.append(settles(name, statement, given, member.method, member.goal(given.clients), rounds))
    return cases


def corrected() -> list[Case]:
    """SCAFFOLD and FedDyn: the true optimum, whoever takes part."""
    given = problem()
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
        settles("scaffold", f"{whole}, 2 of 4 clients", given, scaffold, even, 95, HALF),
        settles("scaffold", f"{whole}, 2 of 4 clients, unbiased", given, scaffold, best, 100, UNBIASED),
        settles("scaffold", f"{whole}, replies lost", given, scaffold, even, 85, EVEN, LOSSY),
        settles("feddyn", whole, given, dyn, best, 65),
        settles("feddyn", f"{whole}, mean of the clients", given, replace(dyn, report="mean"), best, 65),
        settles("feddyn", f"{whole}, 2 of 4 clients", given, dyn, even, 150, HALF),
        settles("feddyn", f"{whole}, replies lost", given, dyn, even, 100, EVEN, LOSSY),
    ]


def normalised() -> list[Case]:
    """FedNova with clients that take 1, 2, 3 and 4 steps."""
    given = problem()
    nova = _uneven(FedNova(lr=LR, steps=1))
    steps = (1, 2, 3, 4)
    plain, heavy = (reference.fednova(given.clients, LR, steps, beta) for beta in (0.0, 0.9))
    return [
        settles("fednova", "settles at its normalised surrogate, 1 to 4 steps", given, nova, plain, 80),
        settles(
            "fednova", "settles at its normalised surrogate, momentum .9", given, replace(nova, options=HEAVY), heavy,
            40,
        ),
    ]  # fmt: skip


def parts() -> list[Case]:
    """FedALS right after an average of phi, and with control variates."""
    given, apart = problem(), problem(coupled=False)
    als = FedALS(lr=LR, steps=2, batch=None, alpha=3, layers=1)
    heavy = replace(als, lr=0.02, options=HEAVY)
    goal = reference.fedals(given.clients, LR, 2, 3, given.phi)
    momentum = reference.fedals(given.clients, 0.02, 2, 3, given.phi, 0.9)
    own = np.concatenate([
        apart.clients.minimiser(LR, All(6))[: apart.phi], apart.clients.minimiser(LR, All(2))[apart.phi :]
    ])  # fmt: skip
    both = FedALSScaffold(lr=0.05, steps=2, batch=None, alpha=3, layers=1)
    best, even = given.clients.empirical_minimiser, given.uniform().empirical_minimiser
    return [
        settles("fedals", "settles at the fixed point of its affine map", given, als, goal, 126),
        settles("fedals", "the same with momentum .9 running through", given, heavy, momentum, 276),
        settles("fedals", "uncoupled parts: surrogates of alpha tau and tau steps", apart, als, own, 105),
        settles("fedals-scaffold", "settles at the true optimum", given, both, best, 240),
        settles(
            "fedals-scaffold", "settles at the true optimum, momentum .9", given,
            replace(both, lr=0.005, options=HEAVY), best, 360,
        ),
        settles("fedals-scaffold", "settles at the true optimum, 2 of 4 clients", given, both, even, 345, HALF),
        settles("fedals-scaffold", "settles at the true optimum, replies lost", given, both, even, 276, EVEN, LOSSY),
    ]  # fmt: skip


def shared() -> list[Case]:
    """DataShare: FedAvg's surrogate on the clients with the global set; and clients on their own."""
    given = problem()
    method = DataShare(lr=LR, steps=STEPS, batch=None, share=0.2)
    federation = prepared(method, given.federation(), 0)
    data = [federation.client(i) for i in federation.ids]
    features = [own.x.reshape(-1, own.x.shape[-1]).numpy() for own in data]
    # f_i sums over a sample's d rows where least squares takes their mean.
    mean = Quadratics.from_least_squares(
        features, [own.y.reshape(-1).numpy() for own in data], [float(len(own)) for own in data]
    )
    goal = Quadratics(mean.A * given.clients.c.shape[1], mean.c, mean.p).minimiser(LR, All(STEPS))
    return [
        settles("datashare", "settles at FedAvg's point on the shared data", given, method, goal, 85),
        Case("local-only", "every client settles at its own optimum", _own_optima),
    ]


class _Models(Listener):
    """Every client's model after the last round."""

    wants = ("model",)

    def observe(self, number: int, observed: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.models = {
            client: flat({name: value for name, value in seen.items() if name.startswith("model/")})
            for client, seen in observed.items()
        }


def _own_optima(runtime: str) -> float:
    given, seen = problem(), _Models()
    given.run(LocalOnly(lr=LR, steps=STEPS, batch=None), 90, runtime, listeners=(seen,))
    return max(float(np.linalg.norm(seen.models[str(i)] - c)) for i, c in enumerate(given.clients.c))


def _uneven(method: Scaffold | FedNova) -> Scaffold | FedNova:
    """Sizes 3, 6, 9, 12 and batches of 3: one to four steps, every one with the exact gradient."""
    return replace(method, steps=None, epochs=1, batch=3)

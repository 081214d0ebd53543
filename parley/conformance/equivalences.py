"""Special cases that are other methods exactly: the same bits, or no rounding at all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from parley.algorithms.averaging.feddyn import FedDyn
from parley.algorithms.averaging.fednova import FedNova
from parley.algorithms.averaging.local_update import FedAvg, FedProx
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.parts.fedals import FedALS
from parley.algorithms.parts.fedals_scaffold import FedALSScaffold
from parley.algorithms.protocol import Algorithm
from parley.conformance.case import Case, equals
from parley.conformance.problem import dyadic_problem, quadratic_problem, weights_of

LR = 0.1
HEAVY = {"momentum": 0.9}


def equivalences() -> list[Case]:
    """Two runs of the engine, compared bit for bit."""
    given = quadratic_problem()
    avg = FedAvg(lr=LR, steps=2, batch=None)
    als = FedALS(lr=LR, steps=2, batch=None, layers=1)
    both = FedALSScaffold(lr=LR, steps=2, batch=None, layers=1, alpha=1)
    scaffold = Scaffold(lr=LR, steps=2, batch=None)
    nova, three = FedNova(lr=LR, steps=3, batch=None), FedAvg(lr=LR, steps=3, batch=None)
    return [
        equals("fedals", "alpha = 1 is FedAvg(tau)", given, (replace(als, alpha=1), 7), (avg, 7)),
        equals(
            "fedals",
            "alpha = 1 with momentum afresh is FedAvg(tau)",
            given,
            (replace(als, alpha=1, keep=False, options=HEAVY), 7),
            (replace(avg, options=HEAVY), 7),
        ),
        equals(
            "fedals",
            "L = all is FedAvg(alpha tau)",
            given,
            (replace(als, alpha=3, layers=2), 9),
            (replace(avg, steps=6), 3),
        ),
        equals("fedals-scaffold", "alpha = 1 is SCAFFOLD", given, (replace(both, keep=False), 7), (scaffold, 7)),
        equals("fedals-scaffold", "zero variates are FedAvg (first round)", given, (both, 1), (avg, 1)),
        equals("scaffold", "zero variates are FedAvg (first round)", given, (scaffold, 1), (avg, 1)),
        equals("fednova", "equal steps are FedAvg", given, (nova, 7), (three, 7)),
        equals(
            "fednova",
            "equal steps with momentum are FedAvg",
            given,
            (replace(nova, options=HEAVY), 7),
            (replace(three, options=HEAVY), 7),
        ),
        equals("fedprox", "alpha = 0 is FedAvg", given, (FedProx(lr=LR, steps=2, batch=None, alpha=0.0), 7), (avg, 7)),
        equals(
            "feddyn",
            "the first clients' mean is FedProx",
            given,
            (FedDyn(lr=LR, steps=2, batch=None, alpha=0.5, report="mean"), 1),
            (FedProx(lr=LR, steps=2, batch=None, alpha=0.5), 1),
        ),
        *[_sgd(name, method) for name, method in _EXACT.items()],
    ]


_EXACT: dict[str, Algorithm] = {
    "fedavg": FedAvg(lr=0.125, steps=2, batch=None),
    "fedals": FedALS(lr=0.125, steps=2, batch=None, alpha=2, layers=1),
    "fedals-scaffold": FedALSScaffold(lr=0.125, steps=2, batch=None, alpha=2, layers=1),
    "scaffold": Scaffold(lr=0.125, steps=2, batch=None),
    "fednova": FedNova(lr=0.125, steps=2, batch=None),
}


@dataclass(frozen=True)
class _SGD:
    method: Algorithm

    def __call__(self, runtime: str) -> float:
        given = dyadic_problem().alone()
        x = given.start
        for _ in range(8):
            x = x - 0.125 * (given.clients.A[0] @ (x - given.clients.c[0]))
        return float(np.abs(weights_of(given.run(self.method, 4, runtime)) - x).max())


def _sgd(name: str, method: Algorithm) -> Case:
    return Case(name, "one client is SGD", _SGD(method), 0.0)

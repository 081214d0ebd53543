"""Methods that distil on public inputs, where the student is exact: linear functions and inputs with X'X/n = 1.

There one step of size 1 is least squares, for a client's weak learner and for the student alike. Client i has
y = <c_i, x>, so FFGB-Distill's round is w <- w - eta ((1 + mu) w - sum_i p_i c_i).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.boosting.fedavg_distill import FedAvgDistill
from parley.algorithms.boosting.ffgb_distill import FFGBDistill
from parley.algorithms.boosting.weak import Network
from parley.algorithms.protocol import Algorithm
from parley.conformance.case import Case
from parley.conformance.partial_cohorts import HALF, Drawn
from parley.core.key import Key
from parley.core.tree import flat
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.listeners import Listener
from parley.engine.settings import Sampling
from parley.study.train import train
from parley.theory.theta import Array

SIZES, WIDTH, PUBLIC = (6, 9, 12, 15), 3, 20
ETA, MU = 0.7, 0.3
_STUDENT: dict[str, Any] = {
    "student_epochs": 1,
    "student_batch": None,
    "student_lr": 1.0,
    "student_optimizer": "sgd",
    "student_clip": None,
    "student_loss": "mse",
}
BOOSTED = FFGBDistill(
    lr=ETA, mu=MU, learner=Network(epochs=1, batch=None, lr=1.0, optimizer="sgd", clip=None), **_STUDENT
)
AVERAGED = FedAvg(lr=0.1, steps=3, batch=None)
TAUGHT = FedAvgDistill(lr=0.1, steps=3, batch=None, **_STUDENT)


def distilled() -> list[Case]:
    """What an exact student leads to."""
    shares = np.array(SIZES) / sum(SIZES)
    return [
        _settles("an exact student is gradient descent on functions", BOOSTED, _boosted(3, shares), 3),
        _settles("settles at sum_i p_i c_i / (1 + mu)", BOOSTED, shares @ _optima() / (1 + MU), 60),
        Case("fedavg-distill", "for linear models it is FedAvg", _taught),
    ]


def distilled_cohorts() -> list[Case]:
    """Two of four clients a round."""
    statement = "2 of 4 clients: a round is that of the two drawn"
    return [
        Case("ffgb-distill", statement, lambda runtime: _drawn(BOOSTED, _descended, runtime), stackable=False),
        Case("fedavg-distill", statement, lambda runtime: _drawn(TAUGHT, _approached, runtime)),
    ]


def _drawn(algorithm: Algorithm, goal: Callable[[Array, Array], Array], runtime: str) -> float:
    """Weights p_k scaled to sum to one."""
    drawn = Drawn()
    trained = weights(algorithm, 1, runtime, HALF, (drawn,))
    chosen = [int(client) for client in drawn.ids]
    assert len(chosen) == HALF.size
    mean = np.average(_optima()[chosen], axis=0, weights=np.array(SIZES)[chosen])
    return float(np.linalg.norm(trained - goal(np.full(WIDTH, 0.5), mean)))


def _descended(start: Array, mean: Array) -> Array:
    return start - ETA * ((1 + MU) * start - mean)


def _approached(start: Array, mean: Array) -> Array:
    """FedAvg's client goes (1 - (1 - lr)^K) of the way to its optimum."""
    return start + (1 - (1 - TAUGHT.lr) ** (TAUGHT.steps or 0)) * (mean - start)


def _optima() -> Array:
    return Key(0).fold("distilled").numpy().normal(size=(len(SIZES), WIDTH))


def federation() -> Federation:
    """Four clients that disagree, and public inputs."""
    rng = Key(1).fold("distilled").numpy()

    def orthogonal(rows: int) -> Array:
        return np.asarray(np.linalg.qr(rng.normal(size=(rows, WIDTH)))[0] * np.sqrt(rows))

    inputs = [orthogonal(size) for size in SIZES]
    clients = tuple(
        ClientData(torch.from_numpy(x), torch.from_numpy(x @ c)) for x, c in zip(inputs, _optima(), strict=True)
    )
    info = DataInfo("linear functions", (WIDTH,), 1, "regression")
    names = tuple(map(str, range(len(SIZES))))
    return Federation(info, names, InMemory(clients), public=torch.from_numpy(orthogonal(PUBLIC)))


def weights(
    algorithm: Algorithm,
    rounds: int,
    runtime: str,
    cohort: Sampling | None = None,
    listeners: tuple[Listener, ...] = (),
) -> Array:
    """The model after so many rounds from 1/2 everywhere."""
    module = nn.Linear(WIDTH, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(module.weight, 0.5)
    run = train(
        algorithm,
        federation(),
        model=module,
        rounds=rounds,
        loss="half-squares",
        runtime=runtime,
        cohort=cohort,
        listeners=listeners,
    )
    return flat(run.state["model"])


def _boosted(rounds: int, shares: Array) -> Array:
    w, mean = np.full(WIDTH, 0.5), shares @ _optima()
    for _ in range(rounds):
        w = w - ETA * ((1 + MU) * w - mean)
    return w


def _settles(statement: str, algorithm: Algorithm, goal: Array, rounds: int) -> Case:
    def measure(runtime: str) -> float:
        return float(np.linalg.norm(weights(algorithm, rounds, runtime) - goal))

    return Case("ffgb-distill", statement, measure, stackable=False)


def _taught(runtime: str) -> float:
    return float(np.linalg.norm(weights(TAUGHT, 7, runtime) - weights(AVERAGED, 7, runtime)))

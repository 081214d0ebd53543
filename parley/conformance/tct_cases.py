"""TCT against the pooled solution on the tangent features that it has come to, in NumPy."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import root

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.ntk.tct import TCT
from parley.algorithms.wrappers.wrapper import inner
from parley.conformance.case import Case
from parley.core.key import Key
from parley.core.message import Message
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Sampling
from parley.models import mlp
from parley.study.train import train
from parley.theory.theta import Array

SIZES = (5, 9, 14, 20)
CLASSES = 3
QUIET = Evaluation(central=False, clients="none")


def convexified() -> list[Case]:
    """With everybody, with squared errors and with cross-entropy."""
    return [
        Case(
            "tct",
            "settles at pooled least squares on tangent features",
            lambda runtime: _squares(runtime, 50),
            stackable=False,
        ),
        Case("tct", "settles at pooled logistic regression on tangent features", _logistic, stackable=False),
    ]


def convexified_half(cohort: Sampling) -> Case:
    """The same with some of the clients in a round, who are drawn without bias."""
    return Case(
        "tct",
        "2 of 4 clients: settles at pooled least squares on tangent features",
        lambda runtime: _squares(runtime, 250, cohort),
        stackable=False,
    )


def _method(loss: str) -> TCT:
    second = Scaffold(lr=1.0 if loss == "squares" else 2.0, steps=2, batch=None)
    return TCT(first=FedAvg(lr=0.1, steps=3, batch=None), rounds=2, second=second, features=2, loss=loss)  # type: ignore[arg-type]


def _run(loss: str, runtime: str, rounds: int, cohort: Sampling | None = None) -> tuple[Run, Array, Array]:
    """A run, the standardised features of all samples with a column of ones, and their classes one-hot."""
    rng = Key(0).fold("conformance", "tangent").numpy()
    x = [rng.standard_normal((n, 4)) + 0.5 * rng.standard_normal(4) for n in SIZES]
    y = [
        (inputs @ rng.standard_normal((4, CLASSES)) + rng.gumbel(size=(len(inputs), CLASSES))).argmax(1) for inputs in x
    ]
    data = tuple(ClientData(torch.from_numpy(a), torch.from_numpy(b)) for a, b in zip(x, y, strict=True))
    info = DataInfo("tangents", (4,), CLASSES, "classification")
    federation = Federation(info, ("a", "b", "c", "d"), InMemory(data))
    method = _method(loss)
    run = train(
        method,
        federation,
        model=mlp(5, activation="tanh"),
        rounds=rounds,
        runtime=runtime,
        cohort=cohort,
        evaluation=QUIET,
    )
    given = Message(run.state.tensors, run.state.scalars)
    phi = method.standardised(run.task, given, torch.from_numpy(np.concatenate(x))).numpy()
    return run, np.column_stack([phi, np.ones(len(phi))]), np.eye(CLASSES)[np.concatenate(y)]


def _learned(run: Run) -> Array:
    """[features + 1, classes]."""
    V = inner(run.state, "second")["model"]
    return np.column_stack([V["weight"].numpy(), V["bias"].numpy()]).T


def _squares(runtime: str, rounds: int, cohort: Sampling | None = None) -> float:
    run, phi, y = _run("squares", runtime, rounds, cohort)
    return float(np.abs(phi @ (_learned(run) - np.linalg.lstsq(phi, y, rcond=None)[0])).max())


def _logistic(runtime: str) -> float:
    """Probabilities: the logits themselves are free up to a constant."""
    run, phi, y = _run("task", runtime, 180)

    def probabilities(V: Array) -> Array:
        z = phi @ V.reshape(phi.shape[1], -1)
        e = np.exp(z - z.max(1, keepdims=True))
        return np.asarray(e / e.sum(1, keepdims=True))

    def gradient(V: Array) -> Array:
        return np.asarray((phi.T @ (probabilities(V) - y)).ravel() / len(y) + 1e-30)

    best = root(gradient, np.zeros(phi.shape[1] * CLASSES), method="lm", tol=1e-15).x
    return float(np.abs(probabilities(_learned(run)) - probabilities(best)).max())

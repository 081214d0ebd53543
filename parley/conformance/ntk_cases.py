"""NTK-FL on a model that is linear in its weights, where it is gradient descent on the pooled samples, exactly."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import torch

from parley.algorithms.ntk.cp_ntk_fl import CpNtkFL
from parley.algorithms.ntk.ntk_fl import NtkFL
from parley.conformance.case import Case
from parley.conformance.kernel_cases import Points
from parley.data import ClientData, Federation
from parley.data.sources import InMemory
from parley.theory.theta import Array

STEPS, ROUNDS = 7, 4
DESCENT = NtkFL(lr=0.9, times=(3, STEPS), loss="mse", dynamics="steps", select="last", tolerance=1e-13)


def tangent() -> list[Case]:
    """A round, its limit, and that it does not matter who has which sample."""
    given = Points.drawn()
    everything = np.concatenate([given.phi(x) for x in given.x]), np.concatenate(given.y)

    def after(method: NtkFL, runtime: str, rounds: int, federation: Federation | None = None) -> Array:
        return given.learned(given.run(method, rounds, runtime, federation=federation))

    def steps(runtime: str) -> float:
        phi, y = everything
        theta = np.zeros(phi.shape[1])
        for _ in range(STEPS * ROUNDS):
            theta = theta - DESCENT.lr / len(y) * phi.T @ (phi @ theta - y)
        return _apart(after(DESCENT, runtime, ROUNDS), phi @ theta)

    def limit(runtime: str) -> float:
        phi, y = everything
        method = replace(DESCENT, dynamics="flow", times=(2000,))
        return _apart(after(method, runtime, 20), phi @ np.linalg.lstsq(phi, y, rcond=None)[0])

    def pooled(runtime: str) -> float:
        x, y = (torch.from_numpy(np.concatenate(parts)) for parts in (given.x, given.y))
        federation = Federation(given.data().info, ("all",), InMemory((ClientData(x, y),)))
        judged = replace(DESCENT, select="clients")
        return _apart(after(judged, runtime, ROUNDS), after(judged, runtime, ROUNDS, federation))

    def full(runtime: str) -> float:
        return _apart(after(DESCENT, runtime, ROUNDS), after(replace(DESCENT, kernel="full"), runtime, ROUNDS))

    def sealed(runtime: str) -> float:
        same = {f.name: getattr(DESCENT, f.name) for f in fields(DESCENT)} | {"upload": "dense", "projection": 0}
        return _apart(after(DESCENT, runtime, ROUNDS), after(CpNtkFL(**same), runtime, ROUNDS))

    return [
        Case("cp-ntk-fl", "without projection and sparsification it is NTK-FL", sealed, stackable=False),
        Case("ntk-fl", f"linear model: a round of t = {STEPS} is as many steps pooled", steps, stackable=False),
        Case("ntk-fl", "linear model: settles at the pooled least squares", limit, stackable=False),
        Case("ntk-fl", "is the same whoever has which samples", pooled, stackable=False),
        Case("ntk-fl", "one output: the averaged kernel is the full one", full, stackable=False),
    ]


def _apart(a: Array, b: Array) -> float:
    return float(np.abs(a - b).max())

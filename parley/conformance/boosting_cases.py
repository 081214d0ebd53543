"""Functional boosting against Shen et al.'s algorithms in NumPy, and where it settles in closed form."""

from __future__ import annotations

import numpy as np

from parley.algorithms.boosting.ffgb import FFGB
from parley.algorithms.boosting.weak import RegressionTree
from parley.conformance.boosting_oracles import Cones, LargestCell, Shrunk, largest_cell
from parley.conformance.boosting_problems import CELLS, MU, Problem, same_inputs, shifted
from parley.conformance.case import Case
from parley.data import Federation
from parley.data.sources import InMemory
from parley.engine.settings import Evaluation, Sampling
from parley.study.train import train
from parley.theory.boosting import Oracle, boost
from parley.theory.theta import Array
from parley.training.schedules import Inverse

GAMMA, LOCAL, ROUNDS = 0.4, 3, 4
HALF = Sampling(size=2)
_DECAYING = Inverse(every=1, offset=2)
_NOTHING = Evaluation(central=False, clients="none")


def functional() -> list[Case]:
    """The recursion with three oracles, and the two limits of a constant step."""
    same, apart = same_inputs(), shifted(0.5)
    mean = same.optimum * (1 + MU)
    two = FFGB(2 / MU, LOCAL, MU, _DECAYING)
    return [
        _follows("Algorithm 2 with h = gamma phi", same, two, Shrunk(CELLS, GAMMA), lambda phi, g: GAMMA * phi),
        _follows("Algorithm 2, fitting the largest cell alone", same, two, LargestCell(CELLS), largest_cell),
        _follows(
            "Algorithm 3 with the Lipschitz oracle",
            apart,
            FFGB(4.0, LOCAL, MU, _DECAYING, oracle="lipschitz"),
            Cones(GAMMA),
            lambda phi, g: g - GAMMA * (g - phi),
        ),
        _settles("exact oracle, inputs alike: settles at f*", same, Shrunk(CELLS, 1.0), same.optimum),
        _settles(
            "h = gamma phi, K = 1: settles at gamma / (gamma + mu) of the mean label",
            same,
            Shrunk(CELLS, GAMMA),
            GAMMA / (GAMMA + MU) * mean,
        ),
    ]


def functional_cohorts() -> list[Case]:
    """Two of four clients a round."""
    return [Case("ffgb", "2 of 4 clients: the first learners are those of the two drawn", _drawn, 0.0, stackable=False)]


def _follows(
    statement: str, given: Problem, method: FFGB, learner: Cones | Shrunk | LargestCell, oracle: Oracle
) -> Case:
    method_used = FFGB(method.lr, method.steps, method.mu, method.schedule, learner, method.oracle)

    def measure(runtime: str) -> float:
        iterates = boost(
            given.alpha,
            given.gradient,
            oracle,
            rounds=ROUNDS,
            local=LOCAL,
            mu=method_used.mu,
            outputs=1,
            steps=lambda t, k: method_used.eta(t + 1, k - 1),
        )
        return _apart(given.learned(given.run(method_used, ROUNDS, runtime=runtime)), iterates.functions[-1])

    return Case("ffgb", statement, measure, stackable=False)


def _settles(statement: str, given: Problem, learner: Shrunk, goal: Array) -> Case:
    def measure(runtime: str) -> float:
        return _apart(given.learned(given.run(FFGB(0.8, mu=MU, learner=learner), 60, runtime=runtime)), goal)

    return Case("ffgb", statement, measure, stackable=False)


def _drawn(runtime: str) -> float:
    data, method = same_inputs().federation(), FFGB(learner=RegressionTree(2))
    sampled = train(method, data, rounds=1, runtime=runtime, cohort=HALF, evaluation=_NOTHING)
    ids = tuple(client for client in data.ids if client in sampled.memories)
    few = Federation(data.info, ids, InMemory(tuple(data.client(client) for client in ids)))
    alone = train(method, few, rounds=1, runtime=runtime, evaluation=_NOTHING)
    pairs = [(value.double(), alone.state.tensors[name].double()) for name, value in sampled.state.tensors.items()]
    assert len(ids) == HALF.size
    return max(float((actual - other).abs().max()) for actual, other in pairs)


def _apart(a: Array, b: Array) -> float:
    return float(np.abs(a - b).max())

"""Methods with parts or models of the clients' own, and wrappers of methods: where they settle on the quadratics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.personal.ditto import Ditto
from parley.algorithms.personal.fedbabu import FedBABU
from parley.algorithms.personal.fedrep import FedRep
from parley.algorithms.personal.moon import MOON
from parley.algorithms.protocol import Algorithm
from parley.algorithms.wrappers.ema import EMA
from parley.conformance.case import Case, equals, settles
from parley.conformance.problem import QuadraticProblem, quadratic_problem
from parley.core.tree import flat
from parley.engine.run import Run
from parley.theory.surrogate import All, Quadratics
from parley.theory.theta import Array

LR, STEPS = 0.1, 3
AVERAGE = FedAvg(lr=LR, steps=STEPS, batch=None)


def personal() -> list[Case]:
    """FedRep, FedBABU and Ditto: each client's own model."""
    given = quadratic_problem()
    rep = FedRep(lr=LR, steps=1, head_steps=4, batch=None)
    babu = FedBABU(lr=LR, steps=STEPS, batch=None)
    tuned = replace(babu, personalise_after=90, finetune_steps=5)
    ditto = Ditto(lr=LR, steps=STEPS, batch=None, lam=0.7)
    return [
        _personal(
            "fedrep", "one representation step: minimises sum_i w_i min_h f_i", given, rep, _fedrep(given, 1), 190
        ),
        _personal("fedrep", "settles at its surrogate, 3 steps", given, replace(rep, steps=3), _fedrep(given, 3), 75),
        settles("fedbabu", "the body settles at FedAvg's point under the head", given, babu, _fedbabu(given), 90),
        _personal("fedbabu", "fine-tuned: 5 steps from there", given, tuned, _finetuned(given, 5), 91),
        _personal("ditto", "settles at argmin f_k + lambda/2 ||. - w*||^2", given, ditto, _ditto(given, 0.7), 80),
        _personal(
            "ditto",
            "the same, whatever the personal steps",
            given,
            replace(ditto, personal_steps=1),
            _ditto(given, 0.7),
            130,
        ),
    ]


def wrapped() -> list[Case]:
    """MOON without its loss, and moving averages."""
    given = quadratic_problem()
    best = given.clients.minimiser(LR, All(STEPS))
    moon, scaffold = MOON(lr=LR, steps=STEPS, batch=None, mu=0.0), Scaffold(lr=LR, steps=STEPS, batch=None)
    return [
        equals("moon", "mu = 0 is FedAvg", given, (moon, 7), (AVERAGE, 7)),
        equals("ema", "decay = 0 is FedAvg", given, (EMA(AVERAGE, decay=0.0), 7), (AVERAGE, 7)),
        equals("ema", "decay = 0 is SCAFFOLD", given, (EMA(scaffold, decay=0.0), 7), (scaffold, 7)),
        settles("ema", "the average of FedAvg's first 9 rounds", given, EMA(AVERAGE, 0.8), _averaged(given, 9, 0.8), 9),
        settles("ema", "settles where FedAvg does", given, EMA(AVERAGE, 0.5), best, 90),
    ]


def _personal(
    method: str, statement: str, given: QuadraticProblem, algorithm: Algorithm, goals: Array, rounds: int
) -> Case:
    """Every client's own model after `rounds` against its goal, [clients, d]."""

    def own(run: Run, client: str) -> Array:
        weights = run.learned.weights(run.model(), run.memory(client))
        assert weights is not None
        return flat(weights)

    def measure(runtime: str) -> float:
        run = given.run(algorithm, rounds, runtime)
        return max(float(np.linalg.norm(own(run, i) - goal)) for i, goal in zip(run.federation.ids, goals, strict=True))

    return Case(method, statement, measure)


def _blocks(given: QuadraticProblem) -> Callable[[Array], tuple[Array, Array, Array]]:
    """A in terms of phi and h: A_pp, A_ph, A_hh."""
    cut = given.phi
    return lambda A: (A[:cut, :cut], A[:cut, cut:], A[cut:, cut:])


def _fedrep(given: QuadraticProblem, steps: int) -> Array:
    """phi solves sum_i p_i Q_i S_i (phi - c_i) = 0, S_i the Schur complement that is left of f_i with the best head."""
    split, cut = _blocks(given), given.phi
    total, right = np.zeros((cut, cut)), np.zeros(cut)
    for A, c, p in zip(given.clients.A, given.clients.c, given.clients.p, strict=True):
        pp, ph, hh = split(A)
        schur = pp - ph @ np.linalg.solve(hh, ph.T)
        Q = sum(np.linalg.matrix_power(np.eye(cut) - LR * pp, k) for k in range(steps))
        total, right = total + p * Q @ schur, right + p * Q @ schur @ c[:cut]
    phi = np.linalg.solve(total, right)
    heads = [
        c[cut:] - np.linalg.solve(split(A)[2], split(A)[1].T @ (phi - c[:cut]))
        for A, c in zip(given.clients.A, given.clients.c, strict=True)
    ]
    return np.array([np.concatenate([phi, head]) for head in heads])


def _fedbabu(given: QuadraticProblem) -> Array:
    """FedAvg's surrogate of f_i(., h_0), and h_0."""
    split, cut = _blocks(given), given.phi
    head = given.start[cut:]
    A = np.array([split(A_i)[0] for A_i in given.clients.A])
    c = np.array(
        [
            c[:cut] - np.linalg.solve(split(A_i)[0], split(A_i)[1] @ (head - c[cut:]))
            for A_i, c in zip(given.clients.A, given.clients.c, strict=True)
        ]
    )
    return np.concatenate([Quadratics(A, c, given.clients.p).minimiser(LR, All(STEPS)), head])


def _finetuned(given: QuadraticProblem, steps: int) -> Array:
    """Gradient steps on f_i from FedBABU's model."""
    x, eye = _fedbabu(given), np.eye(len(given.start))
    pairs = zip(given.clients.A, given.clients.c, strict=True)
    return np.array([c + np.linalg.matrix_power(eye - LR * A, steps) @ (x - c) for A, c in pairs])


def _ditto(given: QuadraticProblem, lam: float) -> Array:
    w, eye = given.clients.minimiser(LR, All(STEPS)), np.eye(len(given.start))
    pairs = zip(given.clients.A, given.clients.c, strict=True)
    return np.array([np.linalg.solve(A + lam * eye, A @ c + lam * w) for A, c in pairs])


def _averaged(given: QuadraticProblem, rounds: int, decay: float) -> Array:
    """FedAvg's x_t is affine in x_{t-1}, and so is the mean of all of them."""
    best, eye = given.clients.minimiser(LR, All(STEPS)), np.eye(len(given.start))
    one_round = eye - LR * given.clients.hessian(LR, All(STEPS))
    powers = [np.linalg.matrix_power(one_round, t) for t in range(rounds + 1)]
    mean = decay**rounds * eye + sum((1 - decay) * decay ** (rounds - t) * powers[t] for t in range(1, rounds + 1))
    return np.asarray(best + mean @ (given.start - best), dtype=np.float64)

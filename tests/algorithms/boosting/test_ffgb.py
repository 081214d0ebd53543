"""FFGB is Algorithms 1 to 3 of paper 002: its identity, its bounds and its limits, and planted mistakes in each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from parley.algorithms.boosting import ffgb
from parley.algorithms.boosting.ffgb import FFGB
from parley.algorithms.boosting.weak import KernelRidge, Learner, Linear, RegressionTree
from parley.algorithms.boosting.weak.oracle import LipschitzOracle
from parley.conformance.boosting_oracles import Cones, LargestCell, Shrunk, largest_cell
from parley.conformance.boosting_problems import CELLS, MU, same_inputs, shifted
from parley.core.context import Context
from parley.core.errors import InputError, QuorumError
from parley.core.key import Key
from parley.core.message import Memory, Message
from parley.data import ClientData, DataInfo
from parley.engine.listeners import Listener
from parley.engine.settings import Evaluation, Sampling
from parley.study.train import train
from parley.theory.boosting import (
    bias_without_residual,
    boost,
    decreasing,
    function_bound,
    learner_bound,
    residual_bound,
)
from parley.training.losses import cross_entropy, half_squares
from parley.training.schedules import Inverse
from parley.training.task import Task

QUIET = Evaluation(central=False, clients="none")
DECAYING = Inverse(every=1, offset=2)


def theorem(numerator: float, mu: float, **more: Any) -> FFGB:
    """The theorems' step sizes."""
    return FFGB(lr=numerator / mu, mu=mu, schedule=DECAYING, **more)


# --- what must hold, as checks that a planted mistake must fail ---


def follows_the_theory() -> float:
    """Largest difference between the engine's functions and Algorithms 1 to 3 written out in NumPy."""
    apart = []
    for problem, method, oracle, mu in (
        (same_inputs(), theorem(2, MU, steps=4, learner=Shrunk(CELLS, 0.4)), lambda phi, g: 0.4 * phi, MU),
        (same_inputs(), theorem(2, MU, steps=3, learner=LargestCell(CELLS)), largest_cell, MU),
        (shifted(0.5), FFGB(4.0, 4, 0.0, DECAYING, Cones(0.4), "lipschitz"), lambda phi, g: g - 0.4 * (g - phi), 0.0),
        (shifted(0.5), FFGB(4.0, 4, 0.5, DECAYING, Cones(0.4), "lipschitz"), lambda phi, g: g - 0.4 * (g - phi), 0.5),
    ):
        shrinks = mu + (method.oracle == "lipschitz")
        course = boost(
            problem.alpha,
            problem.gradient,
            oracle,
            rounds=3,
            local=method.steps,
            mu=mu,
            outputs=1,
            steps=lambda t, k, m=method, s=shrinks: min(m.lr / (t * m.steps + k + 1), 1 / s),
        )
        try:
            run = problem.run(method, 3)
        except QuorumError:  # clients found that their learners are worse than none
            return np.inf
        apart.append(float(np.abs(problem.learned(run) - course.functions[-1]).max()))
    return max(apart)


class Recorded(Listener):
    """What clients observed, round by round."""

    def __init__(self) -> None:
        self.rounds: list[Any] = []

    def observe(self, number, observed):
        self.rounds.append(observed)
        return {}


def bias_vanishes() -> float:
    """||f - f*||^2 over its start, for conflicting labels and an oracle that fits the largest cell alone."""
    problem = same_inputs()
    learned = problem.learned(problem.run(theorem(2, MU, steps=12, learner=LargestCell(CELLS)), 12))
    return float(np.square(learned - problem.optimum).sum() / np.square(problem.optimum).sum())


def test_the_engine_follows_the_theory():
    assert follows_the_theory() < 1e-12


def test_the_error_vanishes_for_conflicting_labels():
    assert bias_vanishes() < 0.25


def test_without_the_residual_the_bias_is_the_exact_one():
    """For h = gamma phi; whether labels conflict does not matter."""
    for problem in (same_inputs(), same_inputs(conflict=False)):
        method = theorem(2, MU, steps=4, learner=Shrunk(CELLS, 0.3), residual=False)
        missed = problem.learned(problem.run(method, 25)) - problem.optimum
        mean = problem.optimum * (1 + MU)
        np.testing.assert_allclose(missed, bias_without_residual(0.3, MU) * mean, atol=2e-3)


@pytest.mark.parametrize("K", [2, 4, 8, 16])
def test_with_the_residual_the_bias_falls_with_K(K: int):
    """T K fixed in the large: the third term of Theorem 4.3 falls as 1/K^2 here, and with it the error."""
    problem = same_inputs()
    course = boost(
        problem.alpha,
        problem.gradient,
        lambda phi, g: 0.3 * phi,
        rounds=4000 // K,
        local=K,
        mu=MU,
        steps=decreasing(2, MU, K),
        outputs=1,
    )
    error = course.errors(problem.optimum, problem.alpha)[-1]
    without = bias_without_residual(0.3, MU) ** 2 * np.square(problem.optimum * (1 + MU)).mean()
    assert error < without * 3 / K


def sign_slip(monkeypatch) -> None:
    """The appendix's phi = u + Delta in place of u - Delta, at the samples and between them."""
    answers = LipschitzOracle.__call__

    def slipped(self, phi, key):
        return answers(self, 2 * self.extension.y - phi, key)

    monkeypatch.setattr(LipschitzOracle, "__call__", slipped)


def dropped_residual(monkeypatch) -> None:
    made = FFGB.__post_init__
    monkeypatch.setattr(
        FFGB, "__post_init__", lambda self: (object.__setattr__(self, "residual", False), made(self))[1]
    )


def wrong_mu(monkeypatch) -> None:
    """The server forgets the regulariser that the clients apply."""
    monkeypatch.setattr(ffgb.Gradients, "shrinkage", staticmethod(lambda mu: 0.0))
    monkeypatch.setattr(ffgb.Extensions, "shrinkage", staticmethod(lambda mu: 1.0))


def flipped_gradient(monkeypatch) -> None:
    gradient = ffgb.functional_gradient
    monkeypatch.setattr(ffgb, "functional_gradient", lambda *parts: -gradient(*parts))


@pytest.mark.parametrize("mistake", [sign_slip, dropped_residual, wrong_mu, flipped_gradient])
def test_a_planted_mistake_is_found(mistake: Callable[..., None], monkeypatch):
    mistake(monkeypatch)
    assert follows_the_theory() > 1e-3


def test_the_dropped_residual_is_found_in_the_limit_too(monkeypatch):
    dropped_residual(monkeypatch)
    assert bias_vanishes() > 0.5


# --- identities and bounds, of any learner on any data ---


def task(outputs: int, module: nn.Module | None = None, columns: int = 3, loss=half_squares) -> Task:
    kind = "classification" if loss is cross_entropy else "regression"
    return Task(module, loss, DataInfo("any", (columns,), outputs, kind), 1)


class Asked(Learner):
    """Any learner, with what it was asked for and what it gave."""

    def __init__(self, inner: Learner) -> None:
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "log", [])
        object.__setattr__(self, "norms", inner.norms)

    def fit(self, task, x, phi, key, norm="l2", slopes=None):
        learner = self.inner.fit(task, x, phi, key, norm, slopes)
        self.log.append((phi, self.inner.values(task, learner, x)))
        return learner

    def sum(self, task, learners, coefficients, x):
        return self.inner.sum(task, learners, coefficients, x)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["tree", "linear", "kernel"]),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from(["l2", "l-infinity"]),
)
def test_the_sum_of_learners_telescopes(seed: int, kind: str, K: int, classes: bool, norm: str):
    """sum_k h^k = sum_k grad R[g^k] - Delta^K, with g^k from the recursion; (24), (25) and Lemma D.1 hold."""
    random = np.random.default_rng(seed)
    x = torch.from_numpy(random.normal(size=(20, 3)))
    y = torch.from_numpy(random.integers(0, 3, 20) if classes else random.normal(size=(20, 2)))
    inner: Learner = {"tree": RegressionTree(2), "linear": Linear(), "kernel": KernelRidge(ridge=0.5)}[kind]
    norm = norm if norm in inner.norms else "l2"
    about = task(3 if classes else 2, loss=cross_entropy if classes else half_squares)
    learner, mu = Asked(inner), 0.7
    method = FFGB(lr=4 / mu, steps=K, mu=mu, schedule=DECAYING, learner=learner, oracle=norm)
    try:
        reply = method.client(about, Message(), Memory(), ClientData(x, y), Context.alone(Key(seed)))
    except InputError:  # midranges need not be closer than zero in all outputs together
        assume(norm == "l2")
        raise
    g, delta, seen = torch.zeros(20, about.info.outputs, dtype=torch.float64), 0.0, []
    gradients = []
    for k, (phi, h) in enumerate(learner.log):
        gradients.append(ffgb.functional_gradient(about, g, y))
        torch.testing.assert_close(phi, delta + gradients[-1], rtol=0, atol=1e-12)
        delta = phi - h
        seen.append(float(g.norm(dim=1).square().mean().sqrt() if norm == "l2" else g.norm(dim=1).max()))
        g = g - method.eta(1, k) * (h + mu * g)
    total = sum(h for _, h in learner.log)
    torch.testing.assert_close(total, sum(gradients) - delta, rtol=0, atol=1e-12)
    G, gamma = float(reply.observed["gradient"].max()), float(reply.observed["gamma"].min())
    assert float(reply.observed["residual"].max()) <= residual_bound(G, gamma) + 1e-9
    assert float(reply.observed["learner"].max()) <= learner_bound(G, gamma) + 1e-9
    assert max(seen) <= function_bound(G, gamma, mu) + 1e-9
    decay, coefficients = method.recursion(1)
    added = method.learner.sum(about, reply.message["learners"], torch.tensor(coefficients, dtype=torch.float64), x)
    torch.testing.assert_close(added, g, rtol=0, atol=1e-10)  # what the server makes of it; f was 0
    assert decay == pytest.approx(np.prod([1 - mu * method.eta(1, k) for k in range(K)]))


def test_without_the_cap_the_functions_would_leave_their_bound():
    """4/(mu (k + 1)) is 2/mu at first: g overshoots to twice what it should forget."""
    method = theorem(4, 0.5)
    assert method.eta(1, 0) == 2.0  # 1/mu, not 4/(2 mu)
    assert method.eta(5, 0) == pytest.approx(4 / (0.5 * 6))
    assert theorem(2, 0.5, steps=3).eta(3, 1) == pytest.approx(2 / (0.5 * (2 * 3 + 2 + 1)))
    assert FFGB(lr=0.3, mu=0.5).eta(7, 0) == 0.3


def test_partial_participation_settles_at_the_optimum_on_average():
    """Theorem G.1: the spread that sampling adds vanishes with T."""
    problem = same_inputs()
    federation = problem.federation()
    errors = []
    for rounds in (4, 32):
        missed = []
        for seed in range(4):
            run = train(
                theorem(2, MU, steps=4, learner=Shrunk(CELLS, 0.9)),
                federation,
                rounds=rounds,
                loss="half-squares",
                seed=seed,
                runtime="inline",
                cohort=Sampling(size=2, weights="uniform"),
                evaluation=QUIET,
            )
            missed.append(np.square(problem.learned(run) - problem.optimum).mean())
        errors.append(np.mean(missed))
    assert errors[1] < errors[0] / 2

"""Theorem 4.2: two clients with one input each, and an oracle that is exact on each and still leaves f at zero."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.line_panels import LinePanel, line_panels
from parley_papers.harness import Scale, StudyContext, StudyResult, at_least, at_most, near, study
from parley_papers.threads import single_threaded

oracles = pl.conformance.boosting_oracles
cells = pl.conformance.boosting_problems

_ROUNDS: dict[Scale, int] = {"smoke": 20, "cpu": 200}


def two_points() -> cells.Problem:
    """alpha_i is all on one input, and the labels differ."""
    alpha, shares = np.eye(2), np.broadcast_to(np.eye(2), (2, 2, 2))
    rows = tuple((np.array([[float(i)]]), np.array([i])) for i in range(2))
    occupied = alpha[:, :, None] > 0
    return cells.Problem(
        np.array([[0.0], [1.0]]),
        alpha,
        lambda g: np.where(occupied, pl.theory.boosting.softmax(g) - shares, 0.0),
        pl.theory.boosting.cross_entropy_optimum(shares, alpha, cells.MU),
        rows,
        float(np.abs(alpha - alpha.mean(0)).sum(1).mean() / 2),
        0.5,
    )


def opposing() -> oracles.Opposing:
    """The adversary for `two_points`: at f = 0 the gradients are 1/2 - the label."""
    return oracles.Opposing(2, ((-0.5, 0.5), (0.5, -0.5)))


def errors(problem: cells.Problem, method: pl.FFGB, rounds: int) -> tuple[Array, float]:
    """||f^t - f*||^2 over ||f*||^2 after every round of the engine, and the least gamma of all steps."""
    run = problem.run(method, rounds, (pl.WeakLearning(),))
    x, f, history = torch.from_numpy(problem.inputs), None, [1.0]
    for number in range(1, rounds + 1):
        added = {name: v for name, v in run.state["learners"].items() if int(name.partition("/")[0]) == number}
        f = run.learned.outputs(pl.Message.of(learners=added), None, x, f)
        history.append(np.square(f.numpy() - problem.optimum).sum() / np.square(problem.optimum).sum())
    return np.array(history), float(run.series("weak/gamma")[1].min())


@study("002/thm42", scales={scale: f"two clients, {rounds} rounds" for scale, rounds in _ROUNDS.items()})
@single_threaded
def thm42(scale: Scale, context: StudyContext) -> StudyResult:
    """No algorithm that combines weak learners can rely on clients' inputs differing: an exact oracle keeps f at 0."""
    rounds, problem = _ROUNDS[scale], two_points()
    method = pl.FFGB(
        4 / cells.MU,
        1,
        cells.MU,
        pl.Inverse(every=1, offset=2),
        opposing(),
        "l-infinity",
    )
    kept, gamma = errors(problem, method, rounds)
    honest, also = errors(problem, replace(method, learner=oracles.Shrunk(2, 1.0)), rounds)
    checks = [
        near("omega_TV", problem.omega_tv, 0.5, absolute=1e-12),
        near("gamma that the adversary achieves on every client", gamma, 1.0, absolute=1e-12),
        at_most("distance of f from 0 in all rounds", float(np.abs(kept - 1).max()), 0.0),
        near("gamma of the oracle that gives 0 elsewhere", also, 1.0, absolute=1e-12),
        at_most("its error over ||f*||^2", float(honest[-1]), 0.6),
        at_least(
            "||f*||^2, which an algorithm that learned nothing keeps", float(np.square(problem.optimum).sum()), 0.1
        ),
    ]
    panel = LinePanel(
        "squared error over ||f*||^2",
        "round",
        np.arange(rounds + 1.0),
        {"adversary": kept, "0 elsewhere": honest},
        from_zero=True,
    )
    title = "Two oracles that are exact on every client (Theorem 4.2)"
    return context.result(checks, {"thm42": line_panels(title, [panel])}, {"adversary": kept, "honest": honest})

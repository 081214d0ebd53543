"""Unbiased quantisers on heterogeneous quadratics: FedAvg's affine map on average, and a bound on how far off it.

On f_i(x) = 1/2 (x - c_i)' A_i (x - c_i) client i's update is u_i(x) = M_i (x - c_i), M_i = I - (I - lr A_i)^K, and the
server's step gives x <- x - s sum_i p_i C(u_i(x)). C being unbiased, E x_t is FedAvg's x_t, an affine map applied t
times. With E ||C(u) - u||^2 <= omega ||u||^2 the variance V_t = E ||x_t - E x_t||^2 is at most

    V_{t+1} <= ||I - s sum_i p_i M_i||^2 V_t + s^2 omega sum_i p_i^2 (||u_i(E x_t)||^2 + ||M_i||^2 V_t),   V_0 = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.line_panels import LinePanel, line_panels
from parley_papers.harness import Scale, StudyContext, StudyResult, at_least, at_most, study
from parley_papers.spread import spread

LR, STEPS, SERVER = 0.1, 3, 0.5
QUANTISERS: dict[str, pl.Channel] = {
    "qsgd(3)": pl.qsgd(3),
    "qsgd(4, l2)": pl.qsgd(4, "l2"),
    "fedpaq(4)": pl.fedpaq(4),
    "fedcom": pl.fedcom(),
}
DEVIATIONS = 4.5
"""Standard errors that the mean over seeds may be off in any round."""
_SIZES: dict[Scale, tuple[int, int]] = {"smoke": (16, 4), "cpu": (100, 20)}
"""Seeds and rounds."""


@dataclass(frozen=True)
class Case:
    """One run: a channel (or none) and a seed."""

    channel: pl.Channel | None
    seed: int
    rounds: int


class Iterates(pl.Listener):
    """The server's model after every round, the first one included."""

    def start(self, run: pl.Run, rounds: int) -> None:
        self.run, self.points = run, [pl.tree.flat(run.state["model"])]

    def round(self, record: pl.RoundRecord) -> None:
        if record.number:
            self.points.append(pl.tree.flat(self.run.state["model"]))


def iterates(job: Case) -> Array:
    """x_0 ... x_T, [T + 1, d]."""
    given, seen = pl.conformance.problem.quadratic_problem(), Iterates()
    pl.train(
        pl.FedAvg(lr=LR, steps=STEPS, batch=0, server=pl.Descent(lr=SERVER)),
        given.federation(),
        model=pl.conformance.problem.TwoParts(given.start, given.phi),
        rounds=job.rounds,
        loss="half-squares",
        seed=job.seed,
        channels=pl.channels.Chain() if job.channel is None else job.channel,
        runtime="inline",
        evaluation=pl.Evaluation(every=job.rounds + 1),
        listeners=[seen],
    )
    return np.stack(seen.points)


def affine(given: pl.conformance.problem.QuadraticProblem, rounds: int) -> Array:
    """FedAvg's x_0 ... x_T from the definition, [T + 1, d]."""
    points = [given.start]
    for _ in range(rounds):
        updates = np.einsum("ijk,ik->ij", _maps(given), points[-1] - given.clients.c)
        points.append(points[-1] - SERVER * given.clients.p @ updates)
    return np.stack(points)


def variance_bound(given: pl.conformance.problem.QuadraticProblem, omega: float, mean: Array) -> Array:
    """V_0 ... V_T, [T + 1]."""
    M, p = _maps(given), given.clients.p
    shrinks = np.linalg.norm(np.eye(M.shape[1]) - SERVER * np.einsum("i,ijk->jk", p, M), 2) ** 2
    sizes = np.linalg.norm(M, 2, axis=(1, 2)) ** 2
    bound = [0.0]
    for x in mean[:-1]:
        sent = np.square(np.einsum("ijk,ik->ij", M, x - given.clients.c)).sum(1)
        bound.append(float(shrinks * bound[-1] + SERVER**2 * omega * p**2 @ (sent + sizes * bound[-1])))
    return np.array(bound)


def _maps(given: pl.conformance.problem.QuadraticProblem) -> Array:
    eye = np.eye(given.clients.A.shape[1])
    return np.stack([eye - np.linalg.matrix_power(eye - LR * A, STEPS) for A in given.clients.A])


@study("channels/quantisers", scales={"smoke": "16 seeds, 4 rounds", "cpu": "100 seeds, 20 rounds"})
def quantisers(scale: Scale, context: StudyContext) -> StudyResult:
    """QSGD, FedCOM and FedPAQ follow FedAvg on average; their variance stays below its bound all along the run."""
    (seeds, rounds), given = _SIZES[scale], pl.conformance.problem.quadratic_problem()
    mean = affine(given, rounds)
    plain = iterates(Case(None, 0, rounds))
    checks = [at_most("without a channel: distance from the affine map", float(np.abs(plain - mean).max()), 1e-12)]
    jobs = [Case(channel, seed, rounds) for channel in QUANTISERS.values() for seed in range(seeds)]
    paths = np.stack(spread(iterates, jobs, context, "runs")).reshape(len(QUANTISERS), seeds, *mean.shape)
    panels, data = [], {}
    for (name, channel), points in zip(QUANTISERS.items(), paths, strict=True):
        omega = channel.variance(mean.shape[1])
        assert omega is not None
        bound = variance_bound(given, omega, mean)
        error = (points[:, 1:].var(0, ddof=1).sum(1) / seeds) ** 0.5  # of the whole vector: single entries may be exact
        off = np.linalg.norm(points.mean(0) - mean, axis=1)[1:]
        squares = np.square(points - mean).sum(2)  # the mean is known, so this is unbiased
        variance, spread_of_it = squares.mean(0), squares.std(0, ddof=1) / seeds**0.5
        surely = (variance - 4 * spread_of_it)[1:] / bound[1:]
        checks += [
            at_most(f"{name}: its mean off the affine map, in standard errors", float((off / error).max()), DEVIATIONS),
            at_most(f"{name}: its variance over the bound, at most", float(surely.max()), 1.0),
            at_least(f"{name}: its variance, at least (it does round)", float(variance[1:].min()), 1e-12),
        ]
        panels.append(
            LinePanel(
                f"{name}: variance",
                "round",
                np.arange(1.0, rounds + 1),
                {"measured": variance[1:], "bound": bound[1:]},
                scale="log",
            )
        )
        data[name] = {
            "omega": omega,
            "variance": variance,
            "bound": bound,
            "standard error": spread_of_it,
            "mean off, in standard errors": off / error,
        }
    figure = line_panels(f"What unbiased quantisers add to FedAvg's path, {seeds} seeds", panels)
    return context.result(checks, {"variance": figure}, data)

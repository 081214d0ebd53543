"""Figures 1-3: neither method reaches a stationary point, yet both find the truth; minibatches do not change that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.line_panels import LinePanel, line_panels
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, near, study
from parley_papers.su2023.setting import D, gaussian_designs, methods, noise
from parley_papers.threads import single_threaded

CLIENTS, SAMPLES, ROUNDS = 25, 500, 100
BATCHES = (500, 100, 50, 20)
"""Full batches, then the paper's three sizes."""
_SETTING = f"{CLIENTS} clients, d = {D}, n = {SAMPLES}: the paper's setting"
_SCALES: dict[Scale, str] = {"smoke": _SETTING, "cpu": _SETTING, "paper": _SETTING}


@dataclass(frozen=True, eq=False)
class Runs:
    """By method, over rounds 0 ... 100 and at the limit (the last entry)."""

    gradient: dict[str, Array]
    """||grad l(theta_t)|| of l = (1/N) sum ||y_i - X_i theta||^2, without 1/2, as in Section 7.1."""
    error: dict[str, Array]
    """||theta_t - theta*||."""


def simulate_methods(batch: int, seed: str = "000/fig1") -> Runs:
    """All four methods on one draw of the federation, which is the same for every batch size."""
    rng = pl.Key(0).fold(seed).numpy()
    theta = rng.standard_normal(D)
    designs = gaussian_designs(rng, [SAMPLES] * CLIENTS)
    targets = [X @ theta + xi for X, xi in zip(designs, noise(rng, [SAMPLES] * CLIENTS), strict=True)]
    stacked, values = np.vstack(designs), np.concatenate(targets)
    covariance, right = stacked.T @ stacked / len(values), stacked.T @ values / len(values)
    gradient, error = {}, {}
    for name, method in methods().items():
        round_of = pl.theory.kernel.minibatch_round(designs, targets, method, batch)
        path = [np.zeros(D)]
        for _ in range(ROUNDS):
            path.append(round_of(path[-1]))
        points = np.stack([*path, round_of.limit()])
        gradient[name] = np.linalg.norm(2 * (points @ covariance - right), axis=1)
        error[name] = np.linalg.norm(points - theta, axis=1)
    return Runs(gradient, error)


def rounds_to(errors: Array, level: float) -> float:
    """The (fractional) round at which the error first falls to the level."""
    after = int(np.argmax(errors <= level))
    before = errors[after - 1]
    return after - 1 + float(np.log(before / level) / np.log(before / errors[after]))


def _curves(curves: dict[str, Array]) -> dict[str, Array]:
    return {name: values[:-1] for name, values in curves.items()}


@study("000/fig1", scales=_SCALES)
@single_threaded
def fig1(scale: Scale, context: StudyContext) -> StudyResult:
    """Gradients of FedProx and of FedAvg with s > 1 stay above zero while all errors agree."""
    runs = simulate_methods(SAMPLES)
    last = {name: float(values[-1]) for name, values in runs.error.items()}
    floor = {name: float(values[-1]) for name, values in runs.gradient.items()}
    sgd = rounds_to(runs.error["FedAvg, s = 1"], 0.1)
    checks = [
        at_most("gradient at the limit, s = 1", floor["FedAvg, s = 1"], 1e-10),
        *(at_least(f"gradient at the limit, {name}", floor[name], 1e-3) for name in list(floor)[1:]),
        at_most("largest over smallest error at the limit", max(last.values()) / min(last.values()), 1.05),
        near("error at the limit: sigma sqrt(d / N)", last["FedAvg, s = 1"], 0.5 * np.sqrt(D / 12_500), relative=0.15),
        *(
            near(
                f"rounds to error 0.1, s = 1 over s = {s}",
                sgd / rounds_to(runs.error[f"FedAvg, s = {s}"], 0.1),
                s,
                relative=0.25,
            )
            for s in (5, 10)
        ),
        at_least("final error at round 100 over the limit, FedProx", runs.error["FedProx"][-2] / last["FedProx"], 0.9),
    ]
    rounds = np.arange(ROUNDS + 1.0)
    panels = [
        LinePanel("gradient of the global risk", "round", rounds, _curves(runs.gradient), "log"),
        LinePanel("distance to the truth", "round", rounds, _curves(runs.error), "log"),
    ]
    figure = line_panels("The gradient does not vanish, the error does all the same", panels)
    return context.result(checks, {"fig1": figure}, {"gradient": runs.gradient, "error": runs.error})


@study("000/fig2", scales=_SCALES)
@single_threaded
def fig2(scale: Scale, context: StudyContext) -> StudyResult:
    """With minibatches FedAvg with s = 1 misses the stationary point too; s = 5 and 10 hardly change."""
    all_runs = {batch: simulate_methods(batch) for batch in context.track(BATCHES, "batch sizes")}
    floors = {batch: {name: float(v[-1]) for name, v in runs.gradient.items()} for batch, runs in all_runs.items()}
    begin = float(all_runs[SAMPLES].gradient["FedAvg, s = 1"][0])
    checks: list[Check] = [at_most("gradient at the limit, s = 1, full batch", floors[SAMPLES]["FedAvg, s = 1"], 1e-10)]
    for batch in BATCHES[1:]:
        floor = floors[batch]["FedAvg, s = 1"]
        checks.append(at_least(f"gradient at the limit, s = 1, batch {batch}", floor, 1e-3))
        checks.append(
            near(f"FedProx over FedAvg s = 1, batch {batch}", floors[batch]["FedProx"] / floor, 1.0, relative=0.1)
        )
        for s in (5, 10):
            moved = abs(floors[batch][f"FedAvg, s = {s}"] - floors[SAMPLES][f"FedAvg, s = {s}"]) / begin
            checks.append(
                at_most(f"s = {s}, batch {batch}: change of the limit's gradient, of the first one", moved, 1e-3)
            )
    panels = [
        LinePanel(_name(batch), "round", np.arange(ROUNDS + 1.0), _curves(runs.gradient), "log")
        for batch, runs in all_runs.items()
    ]
    data = {str(batch): runs.gradient for batch, runs in all_runs.items()}
    return context.result(checks, {"fig2": line_panels("Gradient of the global risk by batch size", panels)}, data)


@study("000/fig3", scales=_SCALES)
@single_threaded
def fig3(scale: Scale, context: StudyContext) -> StudyResult:
    """Minibatches leave the error as it is."""
    all_runs = {batch: simulate_methods(batch) for batch in context.track(BATCHES, "batch sizes")}
    limits = np.array([[float(v[-1]) for v in runs.error.values()] for runs in all_runs.values()])
    early = np.array([[float(v[10]) for v in runs.error.values()] for runs in all_runs.values()])
    slower = [rounds_to(all_runs[batch].error["FedAvg, s = 1"], 0.1) for batch in BATCHES]
    checks = [
        at_most("largest over smallest error at the limit, all methods and batches", limits.max() / limits.min(), 1.05),
        at_most(
            "s = 10 at round 10: largest over smallest error over batches", early[:, 2].max() / early[:, 2].min(), 1.05
        ),
        near("rounds to error 0.1, s = 1: batch 20 over full batch", slower[-1] / slower[0], 1.0, relative=0.15),
    ]
    panels = [
        LinePanel(_name(batch), "round", np.arange(ROUNDS + 1.0), _curves(runs.error), "log")
        for batch, runs in all_runs.items()
    ]
    data = {str(batch): runs.error for batch, runs in all_runs.items()}
    return context.result(checks, {"fig3": line_panels("Distance to the truth by batch size", panels)}, data)


def _name(batch: int) -> str:
    return "full batch" if batch == SAMPLES else f"batch {batch}"

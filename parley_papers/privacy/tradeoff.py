"""Accuracy against epsilon on the embedded digits, for federations of several sizes.

The secret of each run follows from its seed, so that the study gives the same numbers every time: what it trains shows
what privacy costs, and protects nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import parley as pl
from parley_papers.figures.privacy import PrivacyCurve, privacy_figure
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, claims, study


@dataclass(frozen=True)
class _Size:
    """How large a scale is."""

    clients: tuple[int, ...]
    budgets: tuple[float, ...]
    rounds: int
    seeds: int


_SIZES: dict[Scale, _Size] = {
    "smoke": _Size((50,), (1.0, 8.0), 6, 1),
    "cpu": _Size((50, 300), (0.5, 1.0, 2.0, 4.0, 8.0, 16.0), 20, 3),
}
_RATE, _CLIP, _DELTA = 0.5, 1.0, 1e-5


@study(
    "privacy/tradeoff",
    scales={"smoke": "50 clients, 2 budgets, 6 rounds", "cpu": "50 and 300 clients, 6 budgets, 20 rounds, 3 seeds"},
)
def tradeoff(scale: Scale, context: StudyContext) -> StudyResult:
    """What differential privacy of clients costs in accuracy: the more clients, the less."""
    size = _SIZES[scale]
    runs: dict[tuple[int, float | None, int], pl.Run] = {}
    cells = [(k, e, s) for k in size.clients for e in (None, *size.budgets) for s in range(size.seeds)]
    for cell in context.track(cells, "training"):
        runs[cell] = _trained(cell, size.rounds, context)
    curves = [
        PrivacyCurve(
            f"{clients} clients",
            {e: [runs[clients, e, s].last() for s in range(size.seeds)] for e in size.budgets},
            [runs[clients, None, s].last() for s in range(size.seeds)],
        )
        for clients in size.clients
    ]
    spent = [run.last("privacy/epsilon") / e for (_, e, _), run in runs.items() if e is not None]
    figure = privacy_figure(
        "What privacy costs on the digits",
        curves,
        f"FedAvg, linear model, {size.rounds} rounds, half of the clients a round, delta = {_DELTA:g}",
    )
    data = {curve.name: {"epsilon": curve.accuracy, "without": curve.without} for curve in curves}
    checks = [
        at_most("largest share of a budget that was spent", max(spent), 1.0),
        at_least("smallest share of a budget that was spent", min(spent), 0.98),
        *claims(_claims(curves), scale),
    ]
    return context.result(checks, figures={"accuracy": figure}, data=data)


def _trained(cell: tuple[int, float | None, int], rounds: int, context: StudyContext) -> pl.Run:
    clients, epsilon, seed = cell
    privacy = None if epsilon is None else pl.Privacy(epsilon=epsilon, delta=_DELTA, clip=_CLIP)
    sampling = pl.Sampling(round(_RATE * clients), "poisson", "uniform")
    name = f"{clients} clients, " + ("no privacy" if epsilon is None else f"epsilon {epsilon:g}")
    return pl.train(
        pl.FedAvg(lr=0.2, epochs=5, batch=8),
        _federation(clients, seed),
        model=pl.models.linear(),
        rounds=rounds,
        cohort=sampling,
        seed=seed,
        privacy=privacy,
        secret=pl.Key(seed).fold("tradeoff").digest,
        name=name,
        runtime="stacked",
        evaluation=pl.Evaluation(every=rounds),
        store=context.store,
    )


def _federation(clients: int, seed: int) -> pl.Federation:
    return pl.data.digits().split(pl.Dirichlet(1.0), clients=clients, seed=seed)


def _claims(curves: list[PrivacyCurve]) -> list[Check]:
    """Statements about training, for sizes at which it has an end."""
    few, many = curves[0], curves[-1]
    budgets = sorted(few.accuracy)

    def lost(curve: PrivacyCurve, budget: float) -> float:
        return float(np.mean(curve.without) - np.mean(curve.accuracy[budget]))

    return [
        at_most(f"accuracy lost at epsilon 8, {many.name}", lost(many, 8.0), 0.03),
        at_least(f"accuracy lost at epsilon {budgets[0]:g}, {few.name}", lost(few, budgets[0]), 0.05),
        at_most(
            f"accuracy lost at epsilon {budgets[0]:g}: {many.name} over {few.name}",
            lost(many, budgets[0]) / max(lost(few, budgets[0]), 1e-9),
            1.0,
        ),
    ]

"""Histogram boosting over clients against pooled boosting: the same bits, as accurate, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.tabular import Bars, Dots, tabular
from parley_papers.harness import (
    Check,
    Scale,
    StudyContext,
    StudyResult,
    at_least,
    at_most,
    claims,
    holds,
    study,
    unchecked,
)
from parley_papers.tabular.tables import Fit, Table, embedded, synthetic

POINTS = 0.005
"""Half a point of accuracy or R2."""
TIMES = 5.0
"""What training over ten clients may cost, in training times of scikit-learn on the pooled rows."""
_NOTHING = pl.Evaluation(central=False, clients="none")
_SCALES: dict[Scale, str] = {
    "smoke": "wine and 300 synthetic rows, 4 trees",
    "cpu": "breast-cancer, digits, wine, diabetes and 50,000 synthetic rows, 100 trees; 10 and 100 clients",
}


@study("tabular/pooled", scales=_SCALES)
def pooled(scale: Scale, context: StudyContext) -> StudyResult:
    """Boosted trees over clients are those of pooled data, as accurate as scikit-learn's, at a few times its cost."""
    small = scale == "smoke"
    rounds, clients = (4, 3) if small else (100, 10)
    tables = (
        [embedded("wine", scored=1), synthetic(300)]
        if small
        else [
            embedded("breast-cancer"),
            embedded("digits", scored=1),
            embedded("wine", repeats=2),
            embedded("diabetes", repeats=2),
            synthetic(50_000),
        ]
    )
    checks, scores = [], {}
    with threadpool_limits(1):
        for table in context.track(tables, "tables"):
            checks.append(_same_bits(table, rounds if small else 20, clients))
            scores[table.name] = _scores(table, rounds, clients)
            values, reference = scores[table.name]["histogram boosting"], scores[table.name]["scikit-learn, pooled"]
            what = "R2" if table.regression else "accuracy"
            checks += claims([at_least(f"{table.name}: {what}", values, reference - POINTS)], scale)
        costs = _costs(tables[-1], rounds, (clients,) if small else (clients, 100), 1 if small else 3)
    checks += claims(_cost_checks(costs), scale)
    figure = tabular(
        f"Trees grown from sums: what pooled data give, however the rows are dealt to {clients} clients",
        [Dots(name, values) for name, values in scores.items()],
        [Bars(f"{cost['clients']} clients, {cost['bins']} bins", cost["times"]) for cost in costs],
        TIMES,
    )
    return context.result(checks, {"scores": figure}, {"rounds": rounds, "scores": scores, "costs": costs})


def _train(method: pl.Algorithm, federation: pl.Federation, rounds: int) -> pl.Run:
    return pl.train(method, federation, rounds=rounds, runtime="inline", evaluation=_NOTHING)


def _same_bits(table: Table, rounds: int, clients: int) -> Check:
    """The models of rows dealt at random and by target against that of all rows in one place."""
    data = table.rows(next(table.parts())[0])
    dealt = [table.federation(data, clients, by_target) for by_target in (False, True)]
    first, *others = [
        _train(pl.HistogramBoosting(), each, rounds).state.tensors
        for each in (table.federation(data, 1, False), *dealt)
    ]
    differing = sum(not torch.equal(value, other[name]) for other in others for name, value in first.items())
    return holds(f"{table.name}: tensors that differ from the pooled model's", differing == 0, differing, 0)


def _scores(table: Table, rounds: int, clients: int) -> dict[str, float]:
    def federated(method: pl.Algorithm, by_target: bool) -> Fit:
        def fit(data: pl.ClientData) -> Callable[[Array], Array]:
            run = _train(method, table.federation(data, clients, by_target), rounds)

            def predict(x: Array) -> Array:
                outputs = run.predict(x).numpy()
                return np.asarray(outputs[:, 0] if table.regression else outputs.argmax(axis=1))

            return predict

        return fit

    scores = {
        "histogram boosting": table.score(federated(pl.HistogramBoosting(bins=255), True)),
        "scikit-learn, pooled": table.score(lambda data: _scikit(table, data, rounds, 255).predict),
    }
    for name, method in (("bagging", pl.TreeBagging()), ("cyclic", pl.TreeCyclic())):
        for by_target in (False, True):
            scores[f"{name}, {'by target' if by_target else 'at random'}"] = table.score(federated(method, by_target))
    return scores


def _scikit(table: Table, data: pl.ClientData, rounds: int, bins: int) -> Any:
    """Gradient boosting of the same trees, depth and rate on the pooled rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind: Any = HistGradientBoostingRegressor if table.regression else HistGradientBoostingClassifier
    model = kind(max_iter=rounds, max_depth=6, max_leaf_nodes=None, early_stopping=False, max_bins=bins, random_state=0)
    return model.fit(data.x.numpy(), data.y.numpy())


def _costs(table: Table, rounds: int, clients: tuple[int, ...], pairs: int) -> list[dict[str, Any]]:
    """Seconds of one core, ours and scikit-learn's in turns; by clients and bins."""
    data = table.rows(next(table.parts())[0])
    costs = []
    for count in clients:
        federation = table.federation(data, count, False)
        for bins in (64, 255):
            method = pl.HistogramBoosting(bins=bins)
            _train(method, federation, 1)  # what happens once in a process is not counted
            ours, theirs = [], []
            for _ in range(pairs if count == clients[0] else 1):
                ours.append(_seconds(lambda m=method, f=federation: _train(m, f, rounds)))  # type: ignore[misc]
                theirs.append(_seconds(lambda b=bins: _scikit(table, data, rounds, b)))  # type: ignore[misc]
            times = float(np.median(ours) / np.median(theirs))
            costs.append({"clients": count, "bins": bins, "ours": ours, "scikit-learn": theirs, "times": times})
    return costs


def _cost_checks(costs: list[dict[str, Any]]) -> list[Check]:
    """Our own number of bins with ten clients is judged, the rest reported."""
    names = [f"times scikit-learn, {cost['clients']} clients, {cost['bins']} bins" for cost in costs]
    checks = [at_most(name, cost["times"], TIMES) for name, cost in zip(names, costs, strict=True)]
    return [checks[0], *map(unchecked, checks[1:])]


def _seconds(what: Callable[[], object]) -> float:
    """CPU time, which other programs on the machine hardly change."""
    begin = time.process_time()
    what()
    return time.process_time() - begin

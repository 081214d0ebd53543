"""Boosted trees: the model of pooled data bit for bit, Newton steps in closed form, and who is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from parley.algorithms.protocol import Algorithm
from parley.algorithms.trees.baselines import TreeBagging, TreeCyclic
from parley.algorithms.trees.boosted import ensembles
from parley.algorithms.trees.histogram_boosting import HistogramBoosting
from parley.conformance.case import Case
from parley.core.key import Key
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Sampling
from parley.study.train import train
from parley.theory.theta import Array

ROUNDS = 3
HALF = Sampling(size=2)
"""The default scheme: without replacement."""
BOOSTING = HistogramBoosting(depth=3, bins=16, min_leaf=5)
_NOTHING = Evaluation(central=False, clients="none")


def _table() -> tuple[Array, Array]:
    """200 rows of three columns; the target is a step in the first, a bend in the second, and noise."""
    rng = Key(0).fold("conformance", "trees").numpy()
    x = rng.standard_normal((200, 3))
    return x, np.sign(x[:, 0]) + np.abs(x[:, 1]) + 0.3 * rng.standard_normal(200)


def _owners(kind: str, y: Array) -> NDArray[np.int64]:
    """The client of each row."""
    if kind == "sorted":
        rank = np.empty(len(y), np.int64)
        rank[np.argsort(y)] = np.arange(len(y))
        return rank * 4 // len(y)
    return np.zeros(len(y), np.int64) if kind == "pooled" else np.arange(len(y)) % 4


def _data(owner: NDArray[np.int64], classes: bool) -> Federation:
    x, y = _table()
    targets = torch.from_numpy(np.digitize(y, [0.0, 1.5])) if classes else torch.from_numpy(y)
    info = DataInfo("table", (3,), 3 if classes else 1, "classification" if classes else "regression")
    rows = [torch.from_numpy(np.flatnonzero(owner == i)) for i in np.unique(owner)]
    data = tuple(ClientData(torch.from_numpy(x)[rows_of], targets[rows_of]) for rows_of in rows)
    return Federation(info, tuple(f"c{i}" for i in range(len(data))), InMemory(data))


def _run(
    algorithm: Algorithm, data: Federation, runtime: str, rounds: int = ROUNDS, cohort: Sampling | None = None
) -> Run:
    return train(algorithm, data, rounds=rounds, runtime=runtime, cohort=cohort, evaluation=_NOTHING)


def _apart(a: Run, b: Run) -> float:
    """The largest difference between two models; infinite if they are not even alike."""
    if a.state.tensors.keys() != b.state.tensors.keys():
        return float("inf")
    pairs = [(value.double(), b.state.tensors[name].double()) for name, value in a.state.tensors.items()]
    return max(
        float((first - other).abs().max()) if first.shape == other.shape else float("inf") for first, other in pairs
    )


def trees() -> list[Case]:
    """All methods that boost trees."""
    return [
        *[_pooled(classes, kind) for classes in (False, True) for kind in ("dealt", "sorted")],
        Case("histogram-boosting", "leaves give -lr G / (H + lambda)", _newton, 1e-6, stackable=False),
        _alone("tree-bagging", TreeBagging(depth=3, min_leaf=5)),
        _alone("tree-cyclic", TreeCyclic(depth=3, min_leaf=5)),
    ]


def tree_cohorts() -> list[Case]:
    """Two of four clients a round."""
    statement = "2 of 4 clients: the first trees are those of the two drawn"
    return [
        Case(name, statement, _drawn(algorithm, asked), 0.0, stackable=False)
        for name, algorithm, asked in (
            ("histogram-boosting", BOOSTING, HALF.size),
            ("tree-bagging", TreeBagging(depth=3, min_leaf=5), HALF.size),
            ("tree-cyclic", TreeCyclic(depth=3, min_leaf=5), 1),
        )
    ]


def _pooled(classes: bool, kind: str) -> Case:
    def measure(runtime: str) -> float:
        y = _table()[1]
        return _apart(*(_run(BOOSTING, _data(_owners(owners, y), classes), runtime) for owners in (kind, "pooled")))

    what = "classes" if classes else "numbers"
    return Case("histogram-boosting", f"{what}, {kind} rows: the model of pooled data", measure, 0.0, stackable=False)


def _newton(runtime: str) -> float:
    """Every leaf of the first tree, from the rows that fall into it; rounded to 2^-24 of the largest target."""
    x, y = _table()
    run = _run(replace(BOOSTING, l2=3.0), _data(_owners("dealt", y), False), runtime, 1)
    (tree,) = ensembles(run.model()["trees"], 1)
    leaves, values = tree.leaves(torch.from_numpy(x))[0], tree.values[0, :, 0].numpy()
    residuals = [y.mean() - y[leaves == leaf] for leaf in np.unique(leaves)]
    steps = [-0.1 * residual.sum() / (len(residual) + 3.0) for residual in residuals]
    return float(np.abs(values[np.unique(leaves)] - steps).max())


def _alone(name: str, algorithm: Algorithm) -> Case:
    """One client alone is LightGBM."""

    def measure(runtime: str) -> float:
        import lightgbm

        x, y = _table()
        run = _run(algorithm, _data(_owners("pooled", y), False), runtime)
        settings = {
            "objective": "regression",
            "boost_from_average": False,
            "learning_rate": 0.1,
            "max_depth": 3,
            "num_leaves": 8,
            "min_data_in_leaf": 5,
            "min_data_in_bin": 1,
            "verbosity": -1,
            "num_threads": 1,
            "deterministic": True,
            "force_row_wise": True,
        }
        alone = lightgbm.train(settings, lightgbm.Dataset(x, y, params={"verbosity": -1}), ROUNDS)
        return float(np.abs(run.predict(x)[:, 0].numpy() - alone.predict(x)).max())

    return Case(name, "one client is LightGBM", measure, 1e-6, stackable=False)


def _drawn(algorithm: Algorithm, asked: int | None) -> Callable[[str], float]:
    def measure(runtime: str) -> float:
        data = _data(_owners("sorted", _table()[1]), False)
        sampled = _run(algorithm, data, runtime, 1, HALF)
        ids = tuple(client for client in data.ids if client in sampled.memories)
        assert len(ids) == asked
        few = Federation(data.info, ids, InMemory(tuple(data.client(client) for client in ids)))
        return _apart(sampled, _run(algorithm, few, runtime, 1))

    return measure

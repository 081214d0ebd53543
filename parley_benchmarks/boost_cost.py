"""BOOST-COST: what histogram boosting over clients costs beside scikit-learn's on the pooled rows.

Both grow the same trees, bins included, in one process in turn. Processor time counts, as in METHOD-COST.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from parley import ClientData, DataInfo, Evaluation, Federation, HistogramBoosting, train
from parley_benchmarks.method_cost import at_most, result_of
from parley_benchmarks.result import BenchResult
from parley_benchmarks.workloads import BenchScale

NAME = "BOOST-COST"
ABOUT = "50 trees of depth 6 on 50,000 rows of 20 columns with 64 and 255 bins: one client, ten, scikit-learn pooled"
BOUND = 2.5
"""Clients may take at most so many times scikit-learn's time."""
BINS, CLIENTS = (64, 255), (1, 10)
_NOTHING = Evaluation(central=False, clients="none")


def measure(
    scale: BenchScale = "full", cores: int | None = None, seed: int = 0, say: Callable[[str], None] = lambda _: None
) -> BenchResult:
    """Every federation's training over scikit-learn's with as many bins, on one core."""
    rows, trees, turns = (50_000, 50, 5) if scale == "full" else (300, 2, 1)
    x, y = table(rows, seed)
    lanes: dict[str, Callable[[], object]] = {}
    for bins in BINS:
        lanes[f"scikit-learn, {bins} bins"] = lambda bins=bins: _scikit(x, y, trees, bins)  # type: ignore[misc]
        for count in CLIENTS:
            method, data = HistogramBoosting(bins=bins), _dealt(x, y, count)
            lanes[_name(count, bins)] = lambda method=method, data=data: _train(method, data, trees)  # type: ignore[misc]
    with threadpool_limits(1):
        _train(HistogramBoosting(), _dealt(x, y, 1), 1)  # what happens once in a process is not counted
        _scikit(x, y, 1, BINS[0])
        spent = _in_turn(lanes, turns, say)
    checks = [
        at_most(
            f"{_name(count, bins)}: at most {BOUND:g} times scikit-learn's time on the pooled rows",
            spent[_name(count, bins)],
            spent[f"scikit-learn, {bins} bins"],
            BOUND,
        )
        for bins in BINS
        for count in CLIENTS
    ]
    return result_of(NAME, ABOUT, scale, spent, checks)


def table(rows: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two classes that depend on a product of two columns and on a third, with noise."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, 20), dtype=np.float32)
    return x, (x[:, 0] * x[:, 1] + x[:, 2] + random.standard_normal(rows) / 2 > 0).astype(np.int64)


def _dealt(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], count: int) -> Federation:
    parts = np.array_split(np.arange(len(x)), count)
    data = {str(i): ClientData(torch.from_numpy(x[part]), torch.from_numpy(y[part])) for i, part in enumerate(parts)}
    return Federation.from_arrays(data, info=DataInfo("bench", (20,), 2, "classification"))


def _train(method: HistogramBoosting, data: Federation, trees: int) -> None:
    train(method, data, rounds=trees, runtime="inline", evaluation=_NOTHING)


def _scikit(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], trees: int, bins: int) -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    HistGradientBoostingClassifier(
        max_iter=trees, max_depth=6, max_leaf_nodes=None, early_stopping=False, max_bins=bins, random_state=0
    ).fit(x, y)


def _name(count: int, bins: int) -> str:
    return f"{count} client{'s' if count > 1 else ''}, {bins} bins"


def _in_turn(lanes: dict[str, Callable[[], object]], turns: int, say: Callable[[str], None]) -> dict[str, list[float]]:
    spent: dict[str, list[float]] = {name: [] for name in lanes}
    for turn in range(turns):
        for name, work in lanes.items():
            began = time.process_time()
            work()
            spent[name].append(time.process_time() - began)
        say(f"{NAME}: {turn + 1}/{turns}")
    return spent

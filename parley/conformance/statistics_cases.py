"""Federated statistics: sums and counts of pooled data bit for bit, and moments in closed form."""

from __future__ import annotations

import numpy as np
import torch

from parley.conformance.case import Case
from parley.core.key import Key
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Sampling
from parley.statistics.method import FederatedStatistics, moments
from parley.study.train import train
from parley.theory.theta import Array

METHOD = FederatedStatistics(floor=1, quantiles="cells")
_NOTHING = Evaluation(central=False, clients="none")


def statistics() -> list[Case]:
    """What `statistics` is held against."""
    return [
        Case("statistics", "dealt rows: those of pooled data", lambda runtime: _pooled(runtime, 4), 0.0, False),
        Case("statistics", "one row each: those of pooled data", lambda runtime: _pooled(runtime, 60), 0.0, False),
        Case("statistics", "of 1 to n: mean (n + 1) / 2, deviation sqrt((n^2 - 1) / 12)", _whole_numbers, 0.0, False),
        Case("statistics", "2 of 4 clients: those of the two drawn", _drawn, 0.0, False),
    ]


def _table() -> Array:
    return 1e6 + Key(0).fold("conformance", "statistics").numpy().standard_cauchy((60, 3))


def _data(x: Array, clients: int) -> Federation:
    parts = [torch.from_numpy(x[i::clients]) for i in range(clients)]
    data = tuple(ClientData(part, part[:, :1].clone()) for part in parts)
    info = DataInfo("table", (x.shape[1],), 1, "regression")
    return Federation(info, tuple(map(str, range(clients))), InMemory(data))


def _run(data: Federation, runtime: str, cohort: Sampling | None = None) -> Run:
    return train(METHOD, data, rounds=1, cohort=cohort, evaluation=_NOTHING, runtime=runtime)


def _apart(first: Run, other: Run) -> float:
    """Over all sums and counts but the number of clients."""
    pairs = [
        (value, other.state.tensors[name]) for name, value in first.state.tensors.items() if name != "sums/clients"
    ]
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel())


def _pooled(runtime: str, clients: int) -> float:
    return _apart(*(_run(_data(_table(), many), runtime) for many in (clients, 1)))


def _whole_numbers(runtime: str) -> float:
    n = 101
    means, deviations = moments(_run(_data(np.arange(1.0, n + 1)[:, None], 3), runtime).state["sums"])
    return float(abs(means[0] - (n + 1) / 2) + abs(deviations[0] - np.sqrt((n * n - 1) / 12)))


def _drawn(runtime: str) -> float:
    data = _data(_table(), 4)
    run = _run(data, runtime, Sampling(size=2))
    ids = tuple(run.records[-1].metrics["down/bytes"].clients)
    few = Federation(data.info, ids, InMemory(tuple(data.client(id) for id in ids)))
    return _apart(run, _run(few, runtime))

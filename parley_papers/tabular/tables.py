"""Tables in folds: what is learned of some folds is scored on the one left out, and all scores are of all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import r2_score

import parley as pl
from parley_papers.arrays import Array

Rows = NDArray[np.int64]
Fit = Callable[[pl.ClientData], Callable[[Array], Array]]
"""Training rows -> a function from inputs to outputs (values, or the numbers of classes)."""


@dataclass(frozen=True, eq=False)
class Table:
    """All rows of a data set."""

    name: str
    x: Array
    y: Array
    info: pl.DataInfo
    folds: int = 3
    repeats: int = 1
    """How often the rows are dealt to folds anew: small tables need it, or a single row would decide."""
    scored: int | None = None
    """Folds that are left out in turn; None: all."""

    @property
    def regression(self) -> bool:
        return self.info.kind == "regression"

    def parts(self) -> Iterator[tuple[Rows, Rows]]:
        """Rows to train on and rows to score, by repetition and fold."""
        for repeat in range(self.repeats):
            fold = pl.Key(0).fold("folds", self.name, repeat).numpy().permutation(len(self.x)) % self.folds
            for number in range(self.folds if self.scored is None else self.scored):
                yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)

    def rows(self, chosen: Rows) -> pl.ClientData:
        return pl.ClientData(torch.from_numpy(self.x[chosen]), torch.from_numpy(self.y[chosen]))

    def score(self, fit: Fit) -> float:
        """Accuracy, or R2, of what is predicted for the rows left out, over all folds and repetitions."""
        predictions, wanted = [], []
        for train, test in self.parts():
            predictions.append(fit(self.rows(train))(self.x[test]))
            wanted.append(self.y[test])
        predicted, targets = np.concatenate(predictions), np.concatenate(wanted)
        if not self.regression:
            return float((predicted == targets).mean())
        return float(r2_score(targets, predicted))

    def federation(self, data: pl.ClientData, clients: int, by_target: bool) -> pl.Federation:
        """The rows dealt to clients at random, or in the order of their targets: each client has one class, or few."""
        order = np.argsort(data.y.numpy(), kind="stable")
        if not by_target:
            order = pl.Key(0).fold("deal", self.name).numpy().permutation(len(data))
        parts = [torch.from_numpy(np.sort(rows)) for rows in np.array_split(order, clients)]
        source = pl.data.InMemory(tuple(pl.ClientData(data.x[rows], data.y[rows]) for rows in parts))
        return pl.Federation(self.info, tuple(f"c{i:03}" for i in range(clients)), source)


def embedded(name: str, repeats: int = 1, scored: int | None = None) -> Table:
    """One of the data sets that come with scikit-learn."""
    dataset: Any = pl.data.datasets[name](test_fraction=0.0)
    x = dataset.x.reshape(len(dataset.x), -1).numpy()
    info = pl.DataInfo(name, x.shape[1:], dataset.info.outputs, dataset.info.kind)
    return Table(name, x, dataset.y.reshape(-1).numpy(), info, repeats=repeats, scored=scored)


def synthetic(rows: int) -> Table:
    """Two classes, 20 columns of which ten matter; a sixth of the rows are for scoring."""
    from sklearn.datasets import make_classification

    x, y = make_classification(rows * 6 // 5, 20, n_informative=10, random_state=0)
    info = pl.DataInfo("synthetic", (20,), 2, "classification")
    return Table("synthetic", x.astype(np.float32), y.astype(np.int64), info, folds=6, scored=1)

"""The three settings of Table 1 on finitely many inputs, where the optimum is known; as theory and as a federation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from parley.algorithms.boosting.ffgb import FFGB
from parley.core.key import Key
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Sampling
from parley.study.train import train
from parley.theory.boosting import (
    Gradient,
    cross_entropy_optimum,
    lipschitz_extension,
    softmax,
    square_optimum,
    wasserstein,
)
from parley.theory.theta import Array

__all__ = ["CELLS", "CLASSES", "CLIENTS", "MU", "SAMPLES", "SHARED", "Problem", "own_cells", "same_inputs", "shifted"]

CLIENTS, CELLS, CLASSES, MU = 4, 6, 3, 0.5
SHARED = 3
"""Cells that all clients have where their inputs differ; each has one more of its own."""
SAMPLES = 12


@dataclass(frozen=True, eq=False)
class Problem:
    """Clients whose functions live on the same inputs."""

    inputs: Array
    """[m, d]: a cell's number, or a place."""
    alpha: Array
    """[N, m]: each client's distribution."""
    gradient: Gradient
    optimum: Array
    """f*, [m, c]."""
    rows: tuple[tuple[Array, Array], ...]
    """Each client's samples: inputs and labels, as data."""
    omega_tv: float
    omega_w1: float

    def federation(self) -> Federation:
        """As the engine has it, in float64."""
        data = tuple(ClientData(torch.from_numpy(x), torch.from_numpy(y)) for x, y in self.rows)
        classes = self.rows[0][1].dtype == np.int64
        info = DataInfo(
            "cells", (self.inputs.shape[1],), self.optimum.shape[1], "classification" if classes else "regression"
        )
        return Federation(info, tuple(map(str, range(len(data)))), InMemory(data))

    def run(self, method: FFGB, rounds: int, listeners: tuple[Listener, ...] = (), runtime: str = "inline") -> Run:
        """With the engine, all clients, equal weights."""
        federation = self.federation()
        loss = "half-squares" if federation.info.kind == "regression" else "cross-entropy"
        return train(
            method,
            federation,
            rounds=rounds,
            loss=loss,
            runtime=runtime,
            cohort=Sampling(weights="uniform"),
            evaluation=Evaluation(central=False, clients="none"),
            listeners=listeners,
        )

    def learned(self, run: Run) -> Array:
        """The run's function on all inputs, [m, c]."""
        return np.asarray(run.predictor()(torch.from_numpy(self.inputs)).numpy())


def same_inputs(conflict: bool = True, seed: int = 0) -> Problem:
    """alpha_i = alpha, square loss; labels of different clients conflict, or are all their mean."""
    labels = 2 * Key(seed).fold("002/table1").numpy().standard_normal((CLIENTS, CELLS, 1))
    labels = labels if conflict else np.broadcast_to(labels.mean(0), labels.shape).copy()
    cells = np.arange(CELLS, dtype=float)[:, None]
    alpha = np.full((CLIENTS, CELLS), 1 / CELLS)
    return Problem(
        cells,
        alpha,
        lambda g: g - labels,
        square_optimum(labels, alpha, MU),
        tuple((cells, client_labels) for client_labels in labels),
        0.0,
        0.0,
    )


def own_cells(private: int, seed: int = 0) -> Problem:
    """Cross-entropy; of SAMPLES samples each client has `private` in a cell of its own, the others in shared ones."""
    count = np.zeros((CLIENTS, SHARED + CLIENTS), dtype=int)
    count[:, :SHARED] = (SAMPLES - private) // SHARED
    count[np.arange(CLIENTS), SHARED + np.arange(CLIENTS)] = private
    alpha = count / SAMPLES
    labels = Key(seed).fold("002/table1", "classes").numpy().integers(0, CLASSES, count.shape)
    shares = np.eye(CLASSES)[labels]
    occupied = (alpha > 0)[:, :, None]
    cells = np.arange(count.shape[1])
    rows = tuple(
        (np.repeat(cells, n).astype(float)[:, None], np.repeat(y, n)) for n, y in zip(count, labels, strict=True)
    )
    return Problem(
        cells.astype(float)[:, None],
        alpha,
        lambda g: np.where(occupied, softmax(g) - shares, 0.0),
        cross_entropy_optimum(shares, alpha, MU),
        rows,
        _total_variation(alpha),
        np.nan,
    )


def shifted(shift: float, points: int = CELLS) -> Problem:
    """Square loss without a regulariser; f*(x) = sin 2x, clients at even points that are moved apart by `shift`."""
    inputs_of = [(np.linspace(0, 3, points) + shift * i / CLIENTS)[:, None] for i in range(CLIENTS)]
    inputs = np.concatenate(inputs_of)
    alpha = np.kron(np.eye(CLIENTS), np.full((1, points), 1 / points))
    extensions = np.stack([lipschitz_extension(points_of, np.sin(2 * points_of), inputs) for points_of in inputs_of])
    w1 = float(np.mean([wasserstein(np.repeat(points_of, CLIENTS, axis=0), inputs) for points_of in inputs_of]))
    return Problem(
        inputs,
        alpha,
        lambda g: g - extensions,
        np.sin(2 * inputs),
        tuple((points_of, np.sin(2 * points_of)) for points_of in inputs_of),
        _total_variation(alpha),
        w1,
    )


def _total_variation(alpha: Array) -> float:
    """omega_TV (12)."""
    return float(np.abs(alpha - alpha.mean(0)).sum(1).mean() / 2)

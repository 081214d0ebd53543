"""What a server may ask of `counts` and `cells`: columns that there are, edges that rise, cells that bins need."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parley.algorithms import algorithms
from parley.core.errors import WireError
from parley.core.message import Message
from parley.data import Federation
from parley.statistics.method import FederatedStatistics
from parley.study.train import make_task


def task():
    rng = np.random.default_rng(0)
    return make_task(Federation.from_arrays({"a": (rng.normal(size=(30, 2)), rng.integers(0, 2, 30))}), None, 0)


def check(cells: np.ndarray, columns: list[int], name: str = "x") -> None:
    method = algorithms["histogram-boosting"]()
    (counts,) = (each for each in method.exchanges() if each.name == "counts")
    message = Message.of(cells={name: torch.from_numpy(cells)}, open={name: torch.tensor(columns)})
    counts.check(task(), message)


def test_honest_cells_are_accepted():
    check(np.linspace(0, 1, 2049)[None].repeat(2, 0), [0, 1])


@pytest.mark.parametrize(
    ("cells", "columns", "name"),
    [
        (np.arange(45_000)[None] * 0.01, [0], "x"),
        (np.array([[0.0, 2.0, 1.0]]), [0], "x"),
        (np.array([[0.0, np.nan]]), [0], "x"),
        (np.array([[0.0], [0.0]]), [0, 0], "x"),
        (np.array([[0.0]]), [2], "x"),
        (np.array([[0.0]]), [-1], "x"),
        (np.array([[0.0]]), [0, 1], "x"),
        (np.array([[0.0]]), [0], "y"),  # of labels there is nothing to find
        (np.array([[0.0]]), [0], "z"),
    ],
)
def test_what_no_honest_server_asks_is_refused(cells, columns, name):
    with pytest.raises(WireError):
        check(cells, columns, name)


def test_overlapping_cells_of_statistics_are_refused():
    """Two of them above the floor would differ by one sample."""
    method = FederatedStatistics(bins=2)
    (asked,) = (each for each in method.exchanges() if each.name == "cells")
    rising = torch.tensor([[0.0, 1.0, 2.0]] * 2, dtype=torch.float64)
    asked.accepts(task(), Message.of(edges=rising)).check({"edges": rising})
    for wrong in (rising.flip(1), rising * torch.nan):
        with pytest.raises(WireError, match="do not rise"):
            asked.accepts(task(), Message.of(edges=wrong))


def test_nobody_is_asked_for_single_values():
    names = {each.name for each in algorithms["histogram-boosting"]().exchanges()}
    assert names == {"counts", "client", "descend"}

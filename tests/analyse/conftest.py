"""Tables, how they are dealt to clients, and what the oracles say."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch

import parley as pl
from parley.data.sources import InMemory

Deal = Callable[[np.ndarray], np.ndarray]


def sorted_by_outcome(y: np.ndarray) -> np.ndarray:
    """Each client has outcomes that no other has."""
    return np.argsort(np.argsort(y, kind="stable"), kind="stable") * 4 // len(y)


def uneven(y: np.ndarray) -> np.ndarray:
    return np.minimum(np.random.default_rng(1).geometric(0.6, len(y)), 5) - 1


def one_row(y: np.ndarray) -> np.ndarray:
    """Clients of a single row beside a large one."""
    return np.minimum(np.arange(len(y)), 20)


DEALS = (sorted_by_outcome, uneven, one_row)


def dealt(x: np.ndarray, y: np.ndarray, owner: np.ndarray, columns: tuple[str, ...] = ()) -> pl.Federation:
    ids = np.unique(owner)
    parts = tuple(pl.ClientData(torch.from_numpy(x[owner == i]), torch.from_numpy(y[owner == i, None])) for i in ids)
    names = columns or tuple("abcdefgh"[: x.shape[1]])
    info = pl.DataInfo("table", x.shape[1:], 1, "regression", columns=names, missing=bool(np.isnan(x).any()))
    return pl.Federation(info, tuple(f"c{i}" for i in ids), InMemory(parts))


def arrays(found: pl.Analysis) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Estimates, errors and p values."""
    return tuple(np.array([getattr(one, name) for one in found.coefficients]) for name in ("estimate", "error", "p"))


@pytest.fixture(params=DEALS, ids=lambda deal: deal.__name__)
def deal(request: pytest.FixtureRequest) -> Deal:
    return request.param


@pytest.fixture
def hospitals(request: pytest.FixtureRequest) -> pl.Dataset:
    """All patients of the data set that `@pytest.mark.parametrize("hospitals", [...], indirect=True)` names."""
    try:
        return {"heart-disease": lambda: pl.data.heart_disease("pooled"), "tcga-brca": pl.data.tcga_brca}[
            request.param
        ]()
    except pl.InputError as error:
        (pytest.fail if "data" in os.environ.get("PARLEY_REQUIRE", "") else pytest.skip)(str(error))


def everybody(data: pl.Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets and owners of training and test patients, in float64."""
    x, y = (torch.cat([getattr(data, name), getattr(data.test, name)]).double().numpy() for name in "xy")
    return x, y, np.concatenate([data.groups, data.test_groups])

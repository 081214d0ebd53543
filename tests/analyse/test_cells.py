"""Cox regression on a grid: no cell tells of fewer rows than the floor, and weights are what an honest server sends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import parley as pl
from parley.analyse.cox import cells_of, risk_sums
from parley.analyse.digits import decoded
from parley.analyse.regression import Rows, withheld
from parley.core.context import Context
from parley.core.errors import InputError, WireError
from parley.core.key import Key
from parley.core.message import Memory, Message
from parley.data import ClientData
from parley.study.task import make_task
from tests.analyse.conftest import dealt

GRID = tuple(np.linspace(0, 3, 31).tolist())


def rows(count: int = 120) -> Rows:
    random = np.random.default_rng(0)
    return Rows(random.normal(size=(count, 2)), random.exponential(size=count), (np.arange(count) % 2).astype(float))


def test_cells_have_enough_rows_of_each_kind_or_none():
    method = pl.Cox(times="grid", grid=GRID, floor=10)
    one, grid = rows(), np.array(GRID)
    moved = method._in_cells(one, grid)
    for kind in (0, 1):
        counts = np.bincount(cells_of(moved.y, grid)[moved.event == kind])
        assert counts.sum() == 60
        assert not ((counts > 0) & (counts < 10)).any()
    before = np.bincount(cells_of(one.y, grid)[one.event == 1])
    assert ((before > 0) & (before < 10)).any()  # as they were, single rows stood in cells of their own
    assert np.array_equal(np.sort(moved.x, axis=0), np.sort(one.x, axis=0))


def test_where_cells_have_enough_nothing_moves():
    method, grid = pl.Cox(times="grid", grid=(0.0, 1.0), floor=10), np.array([0.0, 1.0])
    sums, same = (risk_sums(own, np.zeros(2), grid) for own in (rows(), method._in_cells(rows(), grid)))
    assert all(np.array_equal(sums[name], same[name]) for name in sums)


def test_fewer_events_than_the_floor_are_not_told_of():
    few = Rows(rows().x, rows().y, (np.arange(120) < 4).astype(float))
    with pytest.raises(InputError, match="fewer than 10 rows with events"):
        pl.Cox(times="grid", grid=GRID, floor=10)._in_cells(few, np.array(GRID))


def test_a_client_with_too_few_events_is_in_no_number_of_the_fit():
    random = np.random.default_rng(1)
    x, time, event = random.normal(size=(240, 2)), random.exponential(size=240), np.arange(240) % 2
    event[200:] = np.arange(40) < 4  # of the last client
    y, owner = np.where(event, time, -time), np.repeat([0, 1, 2], [100, 100, 40])
    fits = [
        pl.analyse(dealt(x[rows], y[rows], owner[rows]), "cox", times="grid", grid=(0.0, 0.5, 1.0))
        for rows in (owner < 3, owner < 2)
    ]
    first, second = ((fit.rows, fit.events, fit.contributed, fit.likelihood, fit.coefficients) for fit in fits)
    assert first == second
    assert first[:3] == (200, 100, 2)
    assert "has fewer than 10 rows with events" in fits[0].absent["c2"]
    # Events that are neither 0 nor 1 are refused as such.
    outcomes = pl.Federation.from_arrays({i: (np.c_[x, np.full(240, 2.0)], time) for i in "ab"})
    with pytest.raises(InputError, match="'x2' must be 0 or 1"):
        pl.analyse(outcomes, "cox", event="x2", times="grid", grid=(0.0, 0.5, 1.0))


def asked(method: pl.Cox, whole: list[float], part: list[float]) -> dict[str, np.ndarray]:
    one = rows()
    y = torch.from_numpy(np.where(one.event > 0, one.y, -one.y))
    federation = pl.Federation.from_arrays({i: (one.x, y.numpy()) for i in "ab"})
    task = make_task(federation, None, 0)
    at = {"center": torch.zeros(3), "scale": torch.ones(3), "beta": torch.zeros(2)}
    message = Message.of(
        at={name: value.double() for name, value in at.items()},
        grid=torch.tensor(method.grid, dtype=torch.float64),
        weights={"whole": torch.tensor(whole).double(), "part": torch.tensor(part).double()},
    )
    each = {each.name: each for each in method.exchanges()}["curvature"]
    each.check(task, message)
    data = ClientData(torch.from_numpy(one.x), y)
    reply = method.curvature(task, message, Memory(), data, Context.alone(Key(0)))
    return decoded(reply.message["curvature"])


def test_weights_that_leave_single_rows_are_not_answered():
    last = rows().y.max()
    method = pl.Cox(times="grid", grid=(0.0, 1.0, last - 1e-6), floor=10)
    assert asked(method, [0.1, 0.1, 0.1], [0.0, 0.0, 0.0])["withheld"] == 0
    alone = asked(pl.Cox(times="grid", grid=(0.0, 1.0), floor=10), [1.0, 0.0], [1.0 - 1e-9, 1.0 - 1e-9])
    assert alone["withheld"] == 0  # all rows without events
    with pytest.raises(WireError, match="below 0"):
        asked(method, [0.1, -0.1, 0.1], [0.0, 0.0, 0.0])
    # Less than what a row's events take off: single rows would come out with the other sign.
    assert asked(method, [0.1, 0.1, 0.1], [0.0, 0.5, 0.0])["withheld"] == 1


@pytest.mark.parametrize(("clients", "words"), [(1, "rows of 1 client count"), (3, "rows of 3 clients count")])
def test_clients_that_tell_nothing_are_counted_in_english(clients, words):
    assert words in str(withheld(("age",), np.ones(1), clients))

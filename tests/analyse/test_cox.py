"""Cox regression: each mode against sums over risk sets written out row by row, and against lifelines."""

from __future__ import annotations

import numpy as np
import pytest

import parley as pl
from parley.analyse import cox

from .conftest import arrays, dealt, sorted_by_outcome, uneven

COLUMNS = ("a", "b", "event")


def table(rows: int = 200, seed: int = 0, ties: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Covariates with the event last, and times, many of them tied."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2)) * [1.0, 12.0] + [0.0, 60.0]
    death = rng.exponential(20 * np.exp(-0.6 * x[:, 0] + 0.03 * (x[:, 1] - 60)))
    censored = rng.uniform(5, 60, rows)
    time = np.minimum(death, censored)
    return np.c_[x, death <= censored], np.ceil(time) if ties else time


def point(x, time, event, beta, ties="efron"):
    """Log-likelihood, score and information of one stratum, a loop over event times and ties."""
    value, score, information = 0.0, np.zeros(len(beta)), np.zeros((len(beta), len(beta)))
    hazard = np.exp(x @ beta)
    for t in np.unique(time[event == 1]):
        risk, now = time >= t, (time == t) & (event == 1)
        for k in range(now.sum()):
            weight = hazard * (risk - now * (k / now.sum() if ties == "efron" else 0.0))
            mean = weight @ x / weight.sum()
            value -= np.log(weight.sum())
            score -= mean
            information += (x.T * weight) @ x / weight.sum() - np.outer(mean, mean)
        value += (x[now] @ beta).sum()
        score += x[now].sum(axis=0)
    return value, score, information


def textbook(x, time, owner, ties="efron"):
    """Coefficients, errors and log-likelihood, a baseline for each owner."""
    covariates, event = x[:, :2] - x[:, :2].mean(0), x[:, 2]
    beta = np.zeros(2)
    for _ in range(30):
        strata = [owner == k for k in np.unique(owner)]
        parts = [point(covariates[own], time[own], event[own], beta, ties) for own in strata]
        value, score, information = (sum(part[n] for part in parts) for n in range(3))
        beta = beta + np.linalg.solve(information, score)
    return beta, np.sqrt(np.diag(np.linalg.inv(information))), value


def check(found: pl.Analysis, wanted, rtol: float = 1e-8) -> None:
    estimate, error, _ = arrays(found)
    np.testing.assert_allclose(estimate, wanted[0], rtol=rtol)
    np.testing.assert_allclose(error, wanted[1], rtol=rtol)
    assert found.likelihood == pytest.approx(wanted[2], rel=1e-9)


def fit(x, time, owner, **more) -> pl.Analysis:
    return pl.analyse(dealt(x, time, owner, COLUMNS), "cox", **({"event": "event", "floor": 1} | more))


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_stratified(deal, ties):
    x, time = table()
    owner = deal(time)
    check(fit(x, time, owner, ties=ties), textbook(x, time, owner, ties))


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_raw_times_are_pooled(deal, ties):
    x, time = table()
    check(fit(x, time, deal(time), times="raw", ties=ties), textbook(x, time, 0 * time, ties))


def test_a_grid_is_that_of_binned_times(deal):
    x, time = table(ties=False)
    grid = (0.0, 4.0, 9.0, 15.0, 30.0)
    binned = np.searchsorted(grid, time, side="right").astype(float)
    check(fit(x, time, deal(time), times="grid", grid=grid), textbook(x, binned, 0 * time), 1e-6)


@pytest.mark.filterwarnings("ignore")  # its own, about newer versions of pandas
def test_they_are_those_of_lifelines(deal):
    lifelines = pytest.importorskip("lifelines")
    import pandas

    x, time = table(seed=3)
    owner = deal(time)
    frame = pandas.DataFrame(x, columns=COLUMNS).assign(time=time, owner=owner)
    # It ends where the decrement is below its precision, at 1e-12 still 1e-8 away.
    precise = {"fit_options": {"precision": 1e-20, "r_precision": 1e-15}}
    for times, columns, more in (("raw", [*COLUMNS, "time"], {}), ("stratified", [*frame], {"strata": ["owner"]})):
        oracle = lifelines.CoxPHFitter().fit(frame[columns], "time", "event", **more, **precise)
        found = fit(x, time, owner, times=times)
        estimate, error, p = arrays(found)
        np.testing.assert_allclose(estimate, oracle.params_, rtol=1e-8)
        np.testing.assert_allclose(error, oracle.standard_errors_, rtol=1e-8)
        np.testing.assert_allclose(p, oracle.summary["p"], rtol=1e-6)


@pytest.mark.parametrize("more", [{}, {"times": "grid", "grid": (0.0, 5.0, 20.0)}])
def test_secure_sums_give_the_same_bits(more):
    x, time = table()
    plain, secure = (fit(x, time, np.arange(len(time)) % 3, **more, **c) for c in ({}, {"channels": pl.secure_sum()}))
    assert plain == secure
    with pytest.raises(pl.ParleyError, match="reads single replies"):
        fit(x, time, np.arange(len(time)) % 3, times="raw", channels=pl.secure_sum())


def test_censored_times_may_be_negative_instead():
    x, time = table()
    signed = np.where(x[:, 2] > 0, time, -time)
    found = pl.analyse(dealt(x[:, :2], signed, uneven(time)), "cox", floor=1)
    assert arrays(found)[0] == pytest.approx(arrays(fit(x, time, uneven(time)))[0], rel=1e-12)


def test_only_raw_times_disclose():
    assert not any(each.discloses for one in (pl.Cox(), pl.Cox(times="grid", grid=(0,))) for each in one.exchanges())
    assert [each.name for each in pl.Cox(times="raw").exchanges() if each.discloses] == ["event_times", "risk"]


def refused(x, time, **more) -> str:
    with pytest.raises(pl.InputError) as said:
        fit(x, time, uneven(time), **more)
    return str(said.value)


def test_what_cannot_be_fitted_is_said_in_a_sentence():
    x, time = table()
    none = x * [1, 1, 0]
    assert "no events among 200 rows" in refused(none, time)
    assert "must not be negative" in refused(x, -time)
    assert "'event' must be 0 or 1" in refused(x * [1, 1, 2], time)
    assert "a grid must say" in refused(x, time, times="grid")
    assert "for times = 'grid' alone" in refused(x, time, grid=(0.0, 1.0))
    assert "rising" in refused(x, time, times="grid", grid=(1.0, 0.0))
    assert "nor lie before 3, where the grid begins" in refused(x, time, times="grid", grid=(3.0, 9.0))
    assert "there is no column 'dead'" in refused(x, time, event="dead")
    assert "times must be 'stratified', 'grid' or 'raw'" in refused(x, time, times="exact")
    assert "grows without end" in refused(np.c_[-time, x[:, 1], 0 * time + 1], time)
    with pytest.raises(pl.InputError, match="event is no setting of the model gaussian"):
        pl.analyse(dealt(x, time, uneven(time)), event="c")


def test_a_planted_mistake_is_seen(monkeypatch):
    """A row is at risk in its own cell."""
    honest = cox.cells_of
    monkeypatch.setattr(cox, "cells_of", lambda times, grid: np.maximum(honest(times, grid) - 1, 0))
    x, time = table()
    owner = sorted_by_outcome(time)
    assert not np.allclose(arrays(fit(x, time, owner, times="raw"))[0], textbook(x, time, 0 * time)[0], rtol=1e-8)

"""Survival curves and the log-rank test: against lifelines, against loops over rows, and in closed form."""

from __future__ import annotations

import json

import numpy as np
import pytest

import parley as pl
from parley.analyse import kaplan_meier

from .conftest import dealt, one_row, uneven
from .test_cox import table as cox_table

COLUMNS = ("arm", "event")
GRID = tuple(np.arange(0.0, 60.0, 4.0))
LAST = 1e9
"""Stands for the end that the last cell has not."""
ENDS = np.array([*GRID[1:], LAST])


def table(seed: int = 0, arms: int = 3, ties: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Arms and events, and times."""
    x, time = cox_table(rows=240, seed=seed, ties=ties)
    arm = np.digitize(x[:, 0], np.linspace(-0.6, 0.6, arms - 1)) if arms > 1 else 0 * time
    return np.c_[arm, x[:, 2]], time


def curves(x, time, owner, **more) -> pl.SurvivalCurves:
    settings = {"event": "event", "floor": 1, "times": "raw"} | more
    return pl.analyse(dealt(x, time, owner, COLUMNS), "kaplan-meier", **settings)


def column(curve, name: str) -> np.ndarray:
    return np.array([getattr(step, name) for step in curve.steps])


def check_against_lifelines(curve, time, event, alpha: float) -> None:
    lifelines = pytest.importorskip("lifelines")
    oracle = lifelines.KaplanMeierFitter(alpha=alpha).fit(time, event)
    steps = {LAST if step.time is None else step.time: step for step in curve.steps}
    shared = sorted(set(steps) & set(time))
    wanted = oracle.survival_function_.join(oracle.confidence_interval_).loc[shared]
    found = [(steps[t].survival, steps[t].low, steps[t].high) for t in shared]
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-15)
    assert [steps[t].at_risk for t in shared] == list(oracle.event_table["at_risk"].loc[shared])
    assert sum(steps[t].events for t in shared) == event.sum()
    ends = lifelines.utils.median_survival_times(oracle.confidence_interval_).values[0]
    medians = [None if value >= LAST else value for value in (oracle.median_survival_time_, *ends)]
    assert [curve.median, curve.median_low, curve.median_high] == medians


@pytest.mark.filterwarnings("ignore")  # its own, about newer versions of pandas
@pytest.mark.parametrize("mode", ["raw", "grid"])
def test_they_are_those_of_lifelines(deal, mode):
    """Raw times as they are, those of a grid with every time moved to its cell's end."""
    lifelines = pytest.importorskip("lifelines")
    x, time = table(ties=mode == "raw")
    more = {"grid": GRID} if mode == "grid" else {}
    found = curves(x, time, deal(time), by="arm", groups=(0, 1, 2), times=mode, level=0.9, **more)
    seen = time if mode == "raw" else ENDS[np.searchsorted(GRID, time, side="right") - 1]
    for group, curve in enumerate(found.curves):
        own = x[:, 0] == group
        check_against_lifelines(curve, seen[own], x[own, 1], 0.1)
    oracle = lifelines.statistics.multivariate_logrank_test(seen, x[:, 0], x[:, 1])
    assert found.statistic == pytest.approx(oracle.test_statistic, rel=1e-10)
    assert (found.p, found.freedom) == (pytest.approx(oracle.p_value, rel=1e-9), 2)


def test_rows_one_by_one(deal):
    """S(t) as a product over single event times, Greenwood's sum beside it."""
    x, time = table(arms=1)
    found = curves(x, time, deal(time)).curves[0]
    survived, variance = 1.0, 0.0
    for step, t in zip(found.steps, np.unique(time[x[:, 1] == 1]), strict=True):
        n, d = (time >= t).sum(), ((time == t) & (x[:, 1] == 1)).sum()
        survived *= 1 - d / n
        variance += d / n / (n - d) if n > d else 0.0
        assert (step.time, step.at_risk, step.events) == (t, n, d)
        assert step.survival == pytest.approx(survived, rel=1e-12)
        assert step.error == pytest.approx(survived * variance**0.5, rel=1e-12)
    assert found.at(-1.0) == 1.0
    assert found.at(1e9) == found.steps[-1].survival


def test_two_groups_are_mantel_and_haenszel():
    """(O - E)^2 / V of a 2 x 2 table at every time."""
    x, time = table(arms=2, seed=4)
    found = curves(x, time, uneven(time), by="arm")
    apart = variance = expected = 0.0
    for t in np.unique(time[x[:, 1] == 1]):
        risk, now = time >= t, (time == t) & (x[:, 1] == 1)
        n, d, n1 = risk.sum(), now.sum(), (risk & (x[:, 0] == 1)).sum()
        apart += (now & (x[:, 0] == 1)).sum() - d * n1 / n
        expected += d * n1 / n
        variance += d * (n - d) * n1 * (n - n1) / (n**2 * (n - 1)) if n > 1 else 0.0
    assert found.statistic == pytest.approx(apart**2 / variance, rel=1e-10)
    assert found["1"].expected == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_unrounded_curves_lie_within_the_error_of_the_grid(seed):
    x, time = table(seed, arms=1, ties=False)
    coarse, exact = curves(x, time, uneven(time), times="grid", grid=GRID), curves(x, time, uneven(time))
    for step in coarse.curves[0].steps[:-1]:
        truth = exact.curves[0].at(np.nextafter(step.time, 0))
        assert step.lowest - 1e-12 <= truth <= step.survival + 1e-12
    shown = [step.survival - step.lowest for step in coarse.curves[0].steps[:-1]]
    assert 0 < coarse.grid_error == max(shown) < 0.2
    assert f"at most {coarse.grid_error:.2g} below" in " ".join(coarse.notes())


def test_a_grid_without_censoring_before_events_of_a_cell_is_exact():
    x, time = table(arms=1, ties=False)
    time = np.where(x[:, 1] == 1, time, np.nextafter(ENDS[np.searchsorted(GRID, time, side="right") - 1], 0))
    coarse, exact = curves(x, time, uneven(time), times="grid", grid=GRID), curves(x, time, uneven(time))
    for step in coarse.curves[0].steps[:-1]:
        assert step.survival == pytest.approx(exact.curves[0].at(step.time), rel=1e-12)


def test_secure_sums_give_the_same_counts():
    x, time = table(arms=2)
    owner = np.arange(len(time)) % 3
    more = {"by": "arm", "times": "grid", "grid": GRID, "floor": 10}
    assert curves(x, time, owner, **more) == curves(x, time, owner, channels=pl.secure_sum(), **more)
    with pytest.raises(pl.ParleyError, match="reads single replies"):
        curves(x, time, owner, channels=pl.secure_sum())
    disclosed = [
        [e.name for e in method.exchanges() if e.discloses]
        for method in (pl.KaplanMeier(grid=GRID), pl.KaplanMeier(times="raw"))
    ]
    assert disclosed == [[], ["event_times"]]


def test_below_the_floor_nothing_is_told_of_clients_and_groups():
    x, time = table(arms=2)
    owner = one_row(time)
    found = curves(x, time, owner, floor=10)
    alone = curves(x[20:], time[20:], owner[20:])
    assert (found.curves, found.contributed, found.clients) == (alone.curves, 1, 21)
    x[:, 0] = 0
    x[:100:20, 0] = 1  # five rows of the first client in group 1
    split = curves(x, time, (np.arange(len(time)) >= 100).astype(int), by="arm", floor=10)
    assert (split["1"].rows, split["1"].clients, split["0"].rows) == (0, 0, len(time) - 5)
    assert "2 told nothing of group 1" in " ".join(split.notes())
    assert split.p is None


def test_groups_without_events_and_without_survivors():
    x, time = table(arms=2)
    x[x[:, 0] == 0, 1], x[x[:, 0] == 1, 1] = 0, 1
    found = curves(x, time, uneven(time), by="arm")
    assert {(s.survival, s.low, s.high) for s in found["0"].steps} == {(1.0, 1.0, 1.0)}
    last = found["1"].steps[-1]
    assert (last.survival, last.low, last.high, last.error) == (0.0, 0.0, 0.0, 0.0)
    assert found["0"].median is None
    json.loads(found.json(), parse_constant=pytest.fail)


def test_gaps_are_left_out_and_tables_are_made():
    x, time = table(arms=2)
    x[::7, 0] = np.nan
    kept = ~np.isnan(x[:, 0])
    found = curves(x, time, 0 * time.astype(int), by="arm")
    same = curves(x[kept], time[kept], 0 * time[kept].astype(int), by="arm")
    assert (found.curves, found.missing) == (same.curves, (~kept).sum())
    assert list(found.frame().index.unique()) == ["0", "1"]
    assert found.csv().splitlines()[0].startswith("group,time,at_risk,events,censored,survival")
    assert "Log-rank" in found._repr_html_()


def refused(x, time, **more) -> str:
    with pytest.raises(pl.InputError) as said:
        curves(x, time, uneven(time), **more)
    return str(said.value)


def test_what_has_no_curve_is_said_in_a_sentence():
    x, time = table()
    assert "no events among 240 rows" in refused(x * [1, 0], time)
    assert "must not be negative" in refused(x, -time)
    assert "is none of the groups 0, 1; name its values" in refused(x, time, by="arm")
    assert "nor lie before 5, where the grid begins" in refused(x, time, times="grid", grid=(5.0, 9.0))
    assert "need a grid" in refused(x, time, times=None)
    assert "'by', which is not named" in refused(x, time, groups=(0, 1))
    assert "2 to 20 different values" in refused(x, time, by="arm", groups=(1, 1))
    assert "there is no column 'sex'" in refused(x, time, by="sex")
    assert "covariates is no setting of the model kaplan-meier" in refused(x, time, covariates=["arm"])
    assert "no client has 500 complete rows" in refused(x, time, floor=500)
    with pytest.raises(pl.InputError, match="there is no group"):
        curves(x, time, uneven(time))["2"]


def test_a_planted_mistake_is_seen(monkeypatch):
    """Rows last seen at the time of an event are at risk then."""
    honest = kaplan_meier.at_risk_of
    monkeypatch.setattr("parley.analyse.curves.at_risk_of", lambda d, c: (d, honest(d, c)[1] - c))
    with pytest.raises(AssertionError):
        test_rows_one_by_one(uneven)


def test_the_restricted_mean_is_the_area_below_the_steps():
    survived = np.array([0.5, 0.25, 0.1])
    assert kaplan_meier.restricted_mean(survived, [1.0, 2.0, 4.0], raw=True) == 1 + 0.5 + 2 * 0.25
    # Cells end where the next begins, and the last has no end.
    assert kaplan_meier.restricted_mean(survived, [0.0, 1.0, 3.0], raw=False) == 1 + 2 * 0.5


def test_the_median_is_the_first_time_at_which_half_are_left():
    times = np.repeat([1.0, 2.0, 3.0, 4.0], 10)
    assert (
        pl.analyse(dealt(np.zeros((40, 1)), times, np.zeros(40, int)), "kaplan-meier", times="raw")["all"].median == 2
    )

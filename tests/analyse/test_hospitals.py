"""Real patients: heart disease at four hospitals, breast cancer in six regions, as statsmodels and lifelines say."""

from __future__ import annotations

import numpy as np
import pytest

import parley as pl
from parley_papers.flamby.tables import ESTIMABLE

from .conftest import arrays, dealt, everybody
from .test_cox import table


@pytest.mark.parametrize("hospitals", ["heart-disease"], indirect=True)
def test_heart_disease_is_that_of_statsmodels(hospitals):
    api = pytest.importorskip("statsmodels.api")
    x, y, owner = everybody(hospitals)
    oracle = api.GLM(y, api.add_constant(x), family=api.families.Binomial()).fit(tol=1e-14)
    found = pl.analyse(dealt(x, y, owner, tuple(f"x{n}" for n in range(x.shape[1]))), "logistic")
    estimate, error, p = arrays(found)
    assert (found.rows, found.clients) == (740, 4)
    np.testing.assert_allclose(estimate, oracle.params, rtol=1e-8)
    np.testing.assert_allclose(error, oracle.bse, rtol=1e-8)
    np.testing.assert_allclose(p, oracle.pvalues, rtol=1e-6)
    assert (found.likelihood, found.aic) == pytest.approx((oracle.llf, oracle.aic), rel=1e-10)


@pytest.mark.filterwarnings("ignore")  # lifelines' own, about newer versions of pandas
@pytest.mark.parametrize("hospitals", ["tcga-brca"], indirect=True)
@pytest.mark.parametrize("times", ["raw", "stratified"])
def test_breast_cancer_is_that_of_lifelines(hospitals, times):
    lifelines = pytest.importorskip("lifelines")
    import pandas

    x, y, owner, names = cancers(hospitals)
    frame = pandas.DataFrame(x, columns=names).assign(time=abs(y), event=(y > 0).astype(float))
    strata = {}
    if times == "stratified":
        frame, strata = frame.assign(owner=owner), {"strata": ["owner"]}
    precise = {"precision": 1e-20, "r_precision": 1e-15}
    oracle = lifelines.CoxPHFitter().fit(frame, "time", "event", **strata, fit_options=precise)
    found = pl.analyse(dealt(x, y, owner, names), "cox", times=times)
    assert (found.rows, found.events, found.clients, len(names)) == (1088, 151, 6, 30)
    estimate, error, p = arrays(found)
    np.testing.assert_allclose(estimate, oracle.params_, rtol=1e-8)
    np.testing.assert_allclose(error, oracle.standard_errors_, rtol=1e-8)
    np.testing.assert_allclose(p, oracle.summary["p"], rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hospitals", ["tcga-brca"], indirect=True)
def test_breast_cancer_s_curves_are_those_of_lifelines(hospitals):
    lifelines = pytest.importorskip("lifelines")
    x, y, owner, names = cancers(hospitals)
    late = (x[:, names.index("x16")] + x[:, names.index("x17")]) > 0  # stage IIIA or IIIC
    data = dealt(np.c_[late, y > 0].astype(float), abs(y), owner, ("late", "event"))
    found = pl.analyse(data, "kaplan-meier", event="event", by="late", times="raw")
    for group in (0, 1):
        oracle = lifelines.KaplanMeierFitter().fit(abs(y)[late == group], (y > 0)[late == group])
        curve, own = found[str(group)], np.unique(y[(late == group) & (y > 0)])
        wanted = oracle.survival_function_.join(oracle.confidence_interval_).loc[own].values
        steps = {step.time: step for step in curve.steps}
        np.testing.assert_allclose([(s.survival, s.low, s.high) for s in map(steps.get, own)], wanted, rtol=1e-9)
    test = lifelines.statistics.logrank_test(abs(y)[late], abs(y)[~late], (y > 0)[late], (y > 0)[~late])
    assert (found.statistic, found.p) == pytest.approx((test.test_statistic, test.p_value), rel=1e-9)


@pytest.mark.parametrize("hospitals", ["tcga-brca"], indirect=True)
def test_a_month_of_a_grid_moves_breast_cancer_s_coefficients_little(hospitals):
    """docs/analyse.md has the table; few of 1,088 patients die in the same month, so ties hardly matter here."""
    x, y, owner, names = cancers(hospitals)
    exact = arrays(pl.analyse(dealt(x, y, owner, names), "cox", times="raw"))
    for days, most in ((30, 0.08), (91, 0.25)):
        moved = pl.analyse(dealt(x, y, owner, names), "cox", times="grid", grid=np.arange(0.0, 9000.0, days), floor=1)
        assert np.max(np.abs(arrays(moved)[0] - exact[0]) / exact[1]) < most


@pytest.mark.parametrize("seed", range(3))
def test_where_many_events_share_a_cell_efron_stays_near_and_breslow_does_not(seed):
    """800 rows, some 580 events at a median of 20: cells of 1 have up to thirty each."""
    x, time = table(800, seed=seed, ties=False)
    data, cells = dealt(x, time, np.arange(800) % 4, ("a", "b", "event")), np.arange(0.0, 80.0)
    exact = arrays(pl.analyse(data, "cox", event="event", times="raw"))
    moved = {}
    for ties in ("efron", "breslow"):
        found = pl.analyse(data, "cox", event="event", times="grid", grid=cells, ties=ties, floor=1)
        moved[ties] = np.max(np.abs(arrays(found)[0] - exact[0]) / exact[1])
    assert moved["efron"] < 0.15
    assert 4 * moved["efron"] < moved["breslow"]


def cancers(data: pl.Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]:
    """Patients of all regions, with the columns that a Cox model can tell apart."""
    x, y, owner = everybody(data)
    return x[:, [int(name[1:]) for name in ESTIMABLE]], y, owner, ESTIMABLE

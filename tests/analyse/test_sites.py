"""Sites' own estimates, how far they agree, and models tried at the site left out: against statsmodels and sklearn."""

from __future__ import annotations

import json

import numpy as np
import pytest

import parley as pl
from parley.analyse.regression import Rows

from .conftest import arrays, dealt
from .test_cox import COLUMNS
from .test_cox import table as cox_table
from .test_glm import table, textbook

OWNER = np.repeat([0, 1, 2, 3], [70, 60, 60, 50])


def varied(family: str) -> tuple[np.ndarray, np.ndarray]:
    x, y = table(family, seed=3)
    if family == "gaussian":
        y = y + 300 * OWNER * (x[:, 0] - 60)
    return x, y


@pytest.mark.parametrize("family", ["gaussian", "logistic", "poisson", "gamma"])
def test_each_site_s_estimates_are_those_of_its_rows(family):
    x, y = varied("poisson" if family == "gamma" else family)
    y = y + 0.5 if family == "gamma" else y
    found = pl.analyse(dealt(x, y, OWNER), family, sites=True)
    for site, k in zip(found.sites, range(4), strict=True):
        own = k == OWNER
        alone = pl.analyse(dealt(x[own], y[own], OWNER[own]), family)
        for one, other in zip(site.coefficients, alone.coefficients, strict=True):
            assert (one.estimate, one.error, one.p) == pytest.approx((other.estimate, other.error, other.p), rel=1e-7)
        assert (site.client, site.rows, site.reason) == (f"c{k}", own.sum(), "")
    if family != "gamma":
        np.testing.assert_allclose(
            [one.estimate for one in found.sites[0].coefficients], textbook(family, x[:70], y[:70])[0], rtol=1e-8
        )


def test_meta_analysis_is_that_of_statsmodels():
    """It lets tau2 fall below 0, where DerSimonian and Laird end at 0 and the two analyses agree."""
    meta = pytest.importorskip("statsmodels.stats.meta_analysis")
    x, y = varied("gaussian")
    found = pl.analyse(dealt(x, y, OWNER), sites=True, level=0.9)
    assert [one.name for one in found.heterogeneity] == ["a", "b", "c"]
    for one in found.heterogeneity:
        rows = [next(row for row in site.coefficients if row.name == one.name) for site in found.sites]
        oracle = meta.combine_effects(
            np.array([row.estimate for row in rows]), np.array([row.error for row in rows]) ** 2, method_re="dl"
        )
        assert (one.q, one.freedom, one.tau2) == pytest.approx((oracle.q, 3, max(oracle.tau2, 0)), rel=1e-9)
        assert one.i2 == pytest.approx(max(oracle.i2, 0), rel=1e-9)
        assert one.p == pytest.approx(oracle.test_homogeneity().pvalue, rel=1e-8)
        frame = oracle.summary_frame(alpha=0.1)
        for row, name in (
            (one.fixed, "fixed effect"),
            (one.random, "random effect" if oracle.tau2 > 0 else "fixed effect"),
        ):
            wanted = frame.loc[name, ["eff", "sd_eff", "ci_low", "ci_upp"]]
            assert (row.estimate, row.error, row.low, row.high) == pytest.approx(tuple(wanted), rel=1e-9)
    assert found.heterogeneity[0].i2 > 0.5
    assert min(one.tau2 for one in found.heterogeneity) == 0  # both branches were seen


def test_sites_without_estimates_say_why():
    x, y = table("logistic", seed=3)
    x[OWNER == 0, 1] = 1000.0
    y[OWNER == 1] = 1.0
    y[(OWNER == 2)] = (x[OWNER == 2, 0] > 60).astype(float)
    found = pl.analyse(dealt(x, y, OWNER), "logistic", sites=True)
    reasons = [site.reason for site in found.sites]
    assert reasons == ["collinear columns", "no events", "a coefficient grows without end", ""]
    assert found.heterogeneity == ()
    assert "Site 'c0' has no estimates of its own: collinear columns." in found.notes()
    assert np.isfinite(arrays(found)[0]).all()


def test_a_column_that_is_constant_at_one_hospital_is_no_problem():
    for family in ("gaussian", "logistic", "poisson"):
        x, y = table(family, seed=5)
        x[OWNER == 2, 1] = 993.0
        beta, errors, _ = textbook(family, x, y)
        estimate, error, _ = arrays(pl.analyse(dealt(x, y, OWNER), family))
        np.testing.assert_allclose(estimate, beta, rtol=1e-8)
        np.testing.assert_allclose(error, errors, rtol=1e-8)
    x, time = cox_table(240)
    x[OWNER == 2, 0] = 1.5
    shared, alone = (
        pl.analyse(dealt(x, time, own, COLUMNS), "cox", event="event", times="raw") for own in (OWNER, 0 * OWNER)
    )
    np.testing.assert_allclose(arrays(shared)[0], arrays(alone)[0], rtol=1e-8)


@pytest.mark.parametrize("family", ["gaussian", "logistic", "poisson"])
def test_leaving_one_out_is_fitting_the_others(family):
    metrics = pytest.importorskip("sklearn.metrics")
    x, y = table(family, seed=2)
    found = pl.analyse(dealt(x, y, OWNER), family, leave_one_out=True)
    judge = {"gaussian": metrics.r2_score, "logistic": metrics.roc_auc_score, "poisson": metrics.d2_tweedie_score}
    assert found.metric == {"gaussian": "R2", "logistic": "AUC"}.get(family, "share of the deviance")
    for k, one in enumerate(found.left_out):
        own = k == OWNER
        beta, errors, _ = textbook(family, x[~own], y[~own])
        eta = beta[0] + x[own] @ beta[1:]
        more = {"power": 1} if family == "poisson" else {}
        score = judge[family](y[own], np.exp(eta) if family == "poisson" else eta, **more)
        assert (one.client, one.rows, one.score) == (f"c{k}", own.sum(), pytest.approx(score, rel=1e-8))
        np.testing.assert_allclose([row.estimate for row in one.coefficients], beta, rtol=1e-8)
        np.testing.assert_allclose([row.error for row in one.coefficients], errors, rtol=1e-8)
    plain = pl.analyse(dealt(x, y, OWNER), family)
    assert arrays(found)[0] == pytest.approx(arrays(plain)[0], rel=0)


def test_equal_hazards_count_half_in_the_concordance():
    rows = Rows(np.array([[1.0], [1.0], [0.0]]), np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 0.0]))
    assert pl.Cox().judged(rows, np.ones(1)) == (0.5 + 1) / 2


def test_a_hospital_left_out_is_judged_by_the_share_of_gammas_deviance():
    metrics, random = pytest.importorskip("sklearn.metrics"), np.random.default_rng(3)
    x, beta = random.normal(size=(50, 2)), np.array([0.3, 0.5, -0.2])
    mean = np.exp(beta[0] + x @ beta[1:])
    y = random.gamma(2.0, mean / 2)
    judged = pl.GLM(family="gamma").judged(Rows(x, y, np.ones(50)), beta)
    assert judged == pytest.approx(metrics.d2_tweedie_score(y, mean, power=2), rel=1e-12)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("times", ["stratified", "raw"])
def test_the_concordance_of_a_hospital_left_out(times):
    lifelines = pytest.importorskip("lifelines")
    x, time = cox_table(240, seed=6)
    data = dealt(x, time, OWNER, COLUMNS)
    found = pl.analyse(data, "cox", event="event", times=times, leave_one_out=True)
    for k, one in enumerate(found.left_out):
        own = k == OWNER
        rest = dealt(x[~own], time[~own], OWNER[~own], COLUMNS)
        beta = arrays(pl.analyse(rest, "cox", event="event", times=times))[0]
        wanted = lifelines.utils.concordance_index(time[own], -x[own, :2] @ beta, x[own, 2])
        assert one.score == pytest.approx(wanted, rel=1e-9)
    assert found.metric == "concordance"


def test_fits_that_fail_without_a_hospital_are_told():
    x, y = table("logistic", seed=3)
    rare = np.zeros(len(y))
    rare[:4] = 1  # only at the first hospital
    found = pl.analyse(dealt(np.c_[x, rare], y, OWNER), "logistic", leave_one_out=True)
    assert [one.reason for one in found.left_out] == ["collinear columns", "", "", ""]
    assert "There is no fit without 'c0': collinear columns." in found.notes()
    assert found.left_out[0].score is None
    json.loads(found.json(), parse_constant=pytest.fail)


def test_both_need_single_replies():
    x, y = table("gaussian")
    for more in ({"sites": True}, {"leave_one_out": True}):
        with pytest.raises(pl.ParleyError, match="reads single replies"):
            pl.analyse(dealt(x, y, OWNER), channels=pl.secure_sum(), **more)
    with pytest.raises(pl.InputError, match="without a penalty"):
        pl.analyse(dealt(x, y, OWNER), sites=True, penalty=1.0)


def test_figures_are_drawn(tmp_path):
    from parley.report.forest_figure import forest_figure
    from parley.report.survival_figure import survival_figure

    x, y = varied("logistic")
    found = pl.analyse(dealt(x, y, OWNER), "logistic", sites=True)
    figure = forest_figure(found)
    figure.savefig(tmp_path / "forest.png")
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert labels == ["c0", "c1", "c2", "c3", "fixed effects", "random effects", "pooled rows"]
    assert [axes.get_title().split("\n")[0] for axes in figure.axes] == ["a", "b", "c"]
    with pytest.raises(pl.InputError, match="two sites or more"):
        forest_figure(pl.analyse(dealt(x, y, OWNER), "logistic"))
    z, time = cox_table(240)
    z[:, 0] = z[:, 0] > 0
    for more in ({"times": "raw"}, {"grid": (0, 10, 20, 30)}, {"grid": (0, 10, 20, 30), "by": "a"}):
        curves = pl.analyse(dealt(z, time, OWNER, COLUMNS), "kaplan-meier", event="event", **more)
        figure = survival_figure(curves)
        figure.savefig(tmp_path / "curves.png")
        line = figure.axes[0].get_lines()[0]
        drawn = [step for step in curves.curves[0].steps if step.time is not None]
        np.testing.assert_allclose(line.get_ydata()[1:], [step.survival for step in drawn])
        np.testing.assert_allclose(line.get_xdata()[1:], [step.time for step in drawn])

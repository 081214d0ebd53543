"""Linear, logistic, Poisson and gamma regression, and ridge: those of pooled rows over any partition, under secure sums
the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import minimize
from scipy.special import gammaln

import parley as pl
from parley.analyse.digits import digits, numbers
from parley.analyse.glm import GLM

from .conftest import arrays, dealt, one_row, uneven

FAMILIES = ("gaussian", "logistic", "poisson", "gamma")


def table(family: str, rows: int = 240, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Columns in very different units."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(rows, 3))
    eta = 0.4 + z @ [0.5, -0.3, 0.2]
    y = {
        "gaussian": 1e6 + 1e3 * (eta + rng.normal(size=rows)),
        "logistic": (rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": rng.poisson(np.exp(eta)).astype(float),
        "gamma": 1e-4 * rng.gamma(2.0, np.exp(eta) / 2),
    }[family]
    return z * [1.0, 10.0, 0.01] + [60.0, 1000.0, 0.0], y


def textbook(family: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Coefficients, errors and log-likelihood of one table: least squares row by row, iteratively reweighted."""
    design = np.stack([np.ones(len(x)), *x.T], axis=1)
    start = {"gaussian": y, "gamma": np.log(np.abs(y) + 1e-300)}.get(family, 0 * y)
    beta = np.linalg.lstsq(design, start, rcond=None)[0]
    for _ in range(0 if family == "gaussian" else 60):
        eta = design @ beta
        mean = 1 / (1 + np.exp(-eta)) if family == "logistic" else np.exp(eta)
        weight = {"logistic": mean * (1 - mean), "poisson": mean, "gamma": np.ones(len(y))}[family]
        root = np.sqrt(weight)
        working = eta + (y - mean) / (mean if family == "gamma" else weight)
        beta = np.linalg.lstsq(design * root[:, None], working * root, rcond=None)[0]
    eta = design @ beta
    if family == "gaussian":
        left = ((y - eta) ** 2).sum()
        weight, spread = np.ones(len(y)), left / (len(y) - design.shape[1])
        value = -len(y) / 2 * (np.log(2 * np.pi * left / len(y)) + 1)
    elif family == "logistic":
        weight, spread = 1 / (1 + np.exp(-eta)) / (1 + np.exp(eta)), 1.0
        value = -np.log1p(np.exp(np.where(y > 0, -eta, eta))).sum()
    elif family == "gamma":
        weight, spread = np.ones(len(y)), ((y / np.exp(eta) - 1) ** 2).sum() / (len(y) - design.shape[1])
        value = stats.gamma.logpdf(y, 1 / spread, scale=spread * np.exp(eta)).sum()
    else:
        weight, spread, value = np.exp(eta), 1.0, (y * eta - np.exp(eta) - gammaln(y + 1)).sum()
    r = np.linalg.qr(design * np.sqrt(weight)[:, None])[1]
    inverse = np.linalg.inv(r)
    return beta, np.sqrt(spread * (inverse**2).sum(axis=1)), float(value)


@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_those_of_pooled_rows(family, deal):
    x, y = table(family)
    found = pl.analyse(dealt(x, y, deal(y)), family, floor=1)
    beta, errors, value = textbook(family, x, y)
    estimate, error, _ = arrays(found)
    np.testing.assert_allclose(estimate, beta, rtol=1e-8)
    np.testing.assert_allclose(error, errors, rtol=1e-8)
    assert found.likelihood == pytest.approx(value, rel=1e-10)
    assert found.aic == pytest.approx(8 - 2 * value, rel=1e-10)
    assert (found.rows, found.missing, found.contributed) == (240, 0, found.clients)


@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_those_of_statsmodels(family, deal):
    api = pytest.importorskip("statsmodels.api")
    x, y = table(family, seed=1)
    design = api.add_constant(x)
    log = api.families.links.Log()
    families = {
        "logistic": api.families.Binomial(),
        "poisson": api.families.Poisson(),
        "gamma": api.families.Gamma(log),
    }
    if family == "gaussian":
        oracle = api.OLS(y, design).fit()
    else:
        oracle = api.GLM(y, design, family=families[family]).fit(tol=1e-14)
    found = pl.analyse(dealt(x, y, deal(y)), family, floor=1, level=0.9)
    estimate, error, p = arrays(found)
    np.testing.assert_allclose(estimate, oracle.params, rtol=1e-8)
    np.testing.assert_allclose(error, oracle.bse, rtol=1e-8)
    np.testing.assert_allclose(p, oracle.pvalues, rtol=1e-7, atol=1e-300)
    np.testing.assert_allclose([(one.low, one.high) for one in found.coefficients], oracle.conf_int(0.1), rtol=1e-8)
    assert (found.likelihood, found.aic) == pytest.approx((oracle.llf, oracle.aic), rel=1e-10)


@pytest.mark.parametrize("mean", [0.02, 1e2, 1e6])
def test_counts_may_be_small_or_large(mean):
    x, _ = table("poisson")
    y = np.random.default_rng(0).poisson(mean * np.exp(0.3 * (x[:, 0] - 60))).astype(float)
    y[:3] = np.maximum(y[:3], 1)
    found = pl.analyse(dealt(x, y, uneven(y)), "poisson", floor=1)
    design = np.c_[np.ones(len(x)), (x - x.mean(0)) / x.std(0)]
    left = y - np.exp(np.c_[np.ones(len(x)), x] @ arrays(found)[0])
    assert np.abs(design.T @ left).max() < 1e-8 * max(y.sum(), 1)


def test_nothing_is_more_likely():
    """Against a search that uses no derivatives of ours."""
    x, y = table("logistic", 80)
    found = pl.analyse(dealt(x, y, uneven(y)), "logistic", floor=1)
    z = (x - x.mean(0)) / x.std(0)

    def lost(beta: np.ndarray) -> float:
        return float(np.logaddexp(0, np.where(y > 0, -1, 1) * (beta[0] + z @ beta[1:])).sum())

    assert -found.likelihood <= minimize(lost, np.zeros(4), method="Nelder-Mead", options={"maxiter": 4000}).fun + 1e-9


@pytest.mark.parametrize("family", FAMILIES)
def test_secure_sums_give_the_same_bits(family):
    x, y = table(family)
    data = dealt(x, y, np.arange(len(y)) % 3)
    plain, secure = pl.analyse(data, family), pl.analyse(data, family, channels=pl.secure_sum())
    assert plain == secure


def test_ratios_and_a_dictionary_of_columns():
    x, y = table("logistic")
    found = pl.analyse(dealt(x, y, uneven(y)), "logistic", covariates=["b"], floor=1)
    assert [one.name for one in found.coefficients] == ["(intercept)", "b"]
    one = found["b"]
    assert (one.ratio, one.ratio_low, one.ratio_high) == pytest.approx(tuple(np.exp([one.estimate, one.low, one.high])))
    assert "ratio" in found.csv().splitlines()[0]
    assert '"odds' not in found.json()
    assert list(found.frame().index) == ["(intercept)", "b"]
    assert "240 rows" in found._repr_html_()


def test_rows_with_gaps_are_left_out():
    x, y = table("gaussian")
    x[::7, 1] = np.nan
    whole = ~np.isnan(x).any(axis=1)
    found = pl.analyse(dealt(x, y, uneven(y)), floor=1)
    np.testing.assert_allclose(arrays(found)[0], textbook("gaussian", x[whole], y[whole])[0], rtol=1e-8)
    assert (found.rows, found.missing) == (whole.sum(), (~whole).sum())
    assert any("missing values are left out" in note for note in found.notes())


def test_below_the_floor_a_client_tells_nothing():
    x, y = table("gaussian")
    owner = one_row(y)
    found = pl.analyse(dealt(x, y, owner))
    np.testing.assert_allclose(arrays(found)[0], textbook("gaussian", x[20:], y[20:])[0], rtol=1e-8)
    assert (found.contributed, found.clients) == (1, 21)
    with pytest.raises(pl.InputError, match="no client has 500 complete rows"):
        pl.analyse(dealt(x, y, owner), floor=500)


def test_it_predicts():
    x, y = table("poisson")
    run = pl.train(GLM(floor=1, family="poisson"), dealt(x, y, uneven(y)), rounds=1)
    beta = textbook("poisson", x, y)[0]
    np.testing.assert_allclose(run.predict(torch.from_numpy(x))[:, 0], np.exp(beta[0] + x @ beta[1:]), rtol=1e-8)


def refused(family: str, x: np.ndarray, y: np.ndarray, **more) -> str:
    with pytest.raises(pl.InputError) as said:
        pl.analyse(dealt(x, y, uneven(y)), family, **({"floor": 1} | more))
    return str(said.value)


def test_what_cannot_be_fitted_is_said_in_a_sentence():
    x, y = table("logistic")
    assert "there is no column 'A': did you mean" not in refused("logistic", x, y, covariates=["zzz"])
    assert "there is no column 'zzz'" in refused("logistic", x, y, covariates=["zzz"])
    assert "the coefficient of 'a' grows without end" in refused("logistic", x, (x[:, 0] > 60).astype(float))
    assert "'a', 'b', 'd' are collinear" in refused("logistic", np.c_[x, x[:, 0] + 2 * x[:, 1]], y)
    assert "column 'd' has the same value" in refused("logistic", np.c_[x, 0 * y + 0.1], y)
    assert "have the same class" in refused("logistic", x, 0 * y + 1)
    assert "are 0" in refused("poisson", x, 0 * y)
    assert "must be above 0, but those of" in refused("gamma", x, y)
    assert "penalty must be a number" in refused("gaussian", x, y, penalty=-1.0)
    assert "no standard errors or intervals; take a penalty" in refused("lasso", x, y)
    assert "must be 0 or 1, but those of 240 rows" in refused("logistic", x, y + 0.5)
    assert "must be counts" in refused("poisson", x, -1 - y)
    assert "same value in all rows" in refused("gaussian", x, 0 * y)
    assert "too few for 4 coefficients" in refused("gaussian", x[:4], y[:4] + np.arange(4))
    assert "no model 'logit'" in refused("logit", x, y)
    assert "level of intervals" in refused("gaussian", x, y, level=95)
    assert "can be chosen in a study" in refused("gaussian", x, y, outcome="a")


def residuals(family: str, y: np.ndarray, eta: np.ndarray) -> np.ndarray:
    """The derivative of each row's log-likelihood by eta, dispersion 1."""
    if family == "gaussian":
        return y - eta
    mean = 1 / (1 + np.exp(-eta)) if family == "logistic" else np.exp(eta)
    return (y - mean) / (mean if family == "gamma" else 1.0)


@pytest.mark.parametrize("penalty", [0.3, 50.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_ridge_satisfies_its_kkt_conditions(family, penalty):
    """Z'(y - mu) = penalty beta of standardised columns Z, and 0 of the intercept; linear outcomes standardised."""
    x, y = table(family)
    x = np.c_[x, x[:, 0] + x[:, 1]]  # collinear columns are no problem
    found = pl.analyse(dealt(x, y, uneven(y)), family, floor=1, penalty=penalty)
    beta, unit = arrays(found)[0], y.std() if family == "gaussian" else 1.0
    left = residuals(family, y, beta[0] + x @ beta[1:]) / unit
    z = (x - x.mean(0)) / x.std(0)
    assert abs(left.sum()) < 1e-8
    np.testing.assert_allclose(z.T @ left, penalty * beta[1:] * x.std(0) / unit, atol=1e-8)
    assert any("NOT the usual ones" in note for note in found.notes())
    assert found.aic < 10 - 2 * found.likelihood  # coefficients count in part


def test_ridge_is_that_of_sklearn():
    linear = pytest.importorskip("sklearn.linear_model")
    x, y = table("gaussian")
    z = (x - x.mean(0)) / x.std(0)
    found = pl.analyse(dealt(x, y, uneven(y)), floor=1, penalty=7.0)
    np.testing.assert_allclose(arrays(found)[0][1:] * x.std(0), linear.Ridge(7.0).fit(z, y).coef_, rtol=1e-8)
    x, y = table("logistic")
    z = (x - x.mean(0)) / x.std(0)
    found = pl.analyse(dealt(x, y, uneven(y)), "logistic", floor=1, penalty=7.0)
    oracle = linear.LogisticRegression(C=1 / 7.0, tol=1e-12, max_iter=1000).fit(z, y)
    np.testing.assert_allclose(arrays(found)[0][1:] * x.std(0), oracle.coef_[0], rtol=1e-6)
    separated = (x[:, 0] > 60).astype(float)
    assert np.isfinite(arrays(pl.analyse(dealt(x, separated, uneven(y)), "logistic", floor=1, penalty=1.0))[0]).all()


def test_separation_of_one_rare_column_is_found():
    """Complete for a few rows only: quasi-separation."""
    x, y = table("logistic")
    rare = (np.arange(len(y)) < 6).astype(float)
    y[:6] = 1
    assert "'d' grows without end" in refused("logistic", np.c_[x, rare], y)


def test_digits_are_exact():
    values = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.random.default_rng(1).integers(-18, 15, 1000)
    assert np.array_equal(numbers(digits(values)), values)
    added = digits(values)[:500] + digits(values)[500:] - digits(values)[:500]
    assert np.array_equal(numbers(added), values[500:])
    with pytest.raises(pl.InputError, match="beyond 2"):
        digits(np.array([1e19]))


def test_a_planted_mistake_is_seen(monkeypatch):
    honest = GLM.likelihood

    def wrong(self, rows, beta):
        point = honest(self, rows, beta)
        return type(point)(point.rows, point.value, point.score, 1.001 * point.information)

    monkeypatch.setattr(GLM, "likelihood", wrong)
    x, y = table("logistic")
    error = arrays(pl.analyse(dealt(x, y, uneven(y)), "logistic", floor=1))[1]
    assert not np.allclose(error, textbook("logistic", x, y)[1], rtol=1e-8)

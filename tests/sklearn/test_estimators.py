"""scikit-learn's own checks, the numbers of `pl.train`, and what scikit-learn does with an estimator."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, LeaveOneGroupOut, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator

import parley as pl

SMALL = {
    "classifier": pl.sklearn.FederatedClassifier(rounds=20),
    "regressor": pl.sklearn.FederatedRegressor(rounds=20),
    "boosted classifier": pl.sklearn.FederatedBoostingClassifier(rounds=10, min_leaf=5),
    "boosted regressor": pl.sklearn.FederatedBoostingRegressor(rounds=10, min_leaf=5),
}
EXPECTED_FAILURES: dict[str, str] = {}
PRIVACY = pl.Privacy(noise_multiplier=1.0, delta=1e-3)
RNG = np.random.default_rng(0)


def cancer() -> tuple[pd.DataFrame, pd.Series, pd.Series]:
    """Six columns with names, classes with names, and five hospitals of which one has a single class."""
    x, y = load_breast_cancer(return_X_y=True, as_frame=True)
    labels = y.map({0: "malignant", 1: "benign"})
    clients = pd.Series(np.where((y == 1) & (RNG.random(len(y)) < 0.2), "only", RNG.choice(list("abcd"), len(y))))
    return x.iloc[:, :6], labels, clients


def frame_of(x: pd.DataFrame, y: Any, clients: Any) -> pl.Federation:
    return pl.Federation.from_frame(
        x.assign(site=clients, answer=y), client="site", target="answer", dtype="float64", missing=False
    )


@pytest.mark.filterwarnings("ignore:no clients were named:parley.ParleyWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
@pytest.mark.parametrize("name", SMALL)
def test_scikit_learns_own_checks_pass(name: str):
    results = check_estimator(SMALL[name], expected_failed_checks=EXPECTED_FAILURES, on_skip=None)
    assert len(results) > 50
    assert {result["check_name"] for result in results if result["status"] != "passed"} <= {"check_array_api_input"}


def test_a_classifier_gives_the_numbers_of_train():
    x, y, clients = cancer()
    fitted = pl.sklearn.FederatedClassifier(pl.Scaffold(lr=0.05, steps=3), "mlp", rounds=5, cohort=3, random_state=7)
    fitted.fit(x, y, groups=clients)
    run = pl.train(
        pl.Scaffold(lr=0.05, steps=3),
        frame_of(x, y, clients).standardised(),
        model=pl.models.mlp(100),
        rounds=5,
        cohort=3,
        seed=7,
    )
    logits = run.predict(x.to_numpy())
    np.testing.assert_array_equal(fitted.outputs(x, None), logits.numpy())
    np.testing.assert_array_equal(fitted.predict_proba(x), logits.softmax(1).numpy())
    np.testing.assert_array_equal(fitted.predict(x), np.array(["benign", "malignant"])[logits.argmax(1)])
    assert fitted.score(x, y) == (fitted.predict(x) == y).mean()
    assert fitted.classes_.tolist() == ["benign", "malignant"]
    assert fitted.feature_names_in_.tolist() == x.columns.tolist() == list(fitted.run_.task.info.columns)
    assert fitted.clients_.tolist() == list(dict.fromkeys(clients))


def test_a_regressor_gives_the_numbers_of_train_on_scaled_targets():
    x, y = load_diabetes(return_X_y=True, as_frame=True)
    clients = RNG.integers(0, 4, len(y))
    fitted = pl.sklearn.FederatedRegressor(pl.FedAvg(lr=0.02), rounds=4).fit(x, y, groups=clients)
    mean, deviation = y.to_numpy().mean(), y.to_numpy().std()
    scaled = (y.to_numpy() - mean) / deviation
    run = pl.train(pl.FedAvg(lr=0.02), frame_of(x, scaled, clients).standardised(), model=pl.models.linear(), rounds=4)
    values = run.predict(x.to_numpy()).numpy()[:, 0]
    np.testing.assert_array_equal(fitted.outputs(x, None)[:, 0], values)
    np.testing.assert_array_equal(fitted.predict(x), values * deviation + mean)


def test_boosting_gives_the_trees_of_train_and_of_pooled_rows():
    x, y, clients = cancer()
    fitted = pl.sklearn.FederatedBoostingClassifier(rounds=5, depth=3, bins=16).fit(x, y, groups=clients)
    run = pl.train(pl.HistogramBoosting(depth=3, bins=16), frame_of(x, y, clients), rounds=5)
    np.testing.assert_array_equal(fitted.outputs(x, None), run.predict(x.to_numpy()).numpy())
    pooled = clone(fitted).fit(x, y, groups=np.zeros(len(x)))
    np.testing.assert_array_equal(fitted.predict_proba(x), pooled.predict_proba(x))
    general = pl.sklearn.FederatedClassifier(pl.HistogramBoosting(depth=3, bins=16), rounds=5)
    np.testing.assert_array_equal(general.fit(x, y, groups=clients).outputs(x, None), fitted.outputs(x, None))


def test_boosting_takes_missing_values_and_networks_do_not():
    x, y, clients = cancer()
    gaps = x.mask(RNG.random(x.shape) < 0.2)
    fitted = pl.sklearn.FederatedBoostingClassifier(rounds=10).fit(gaps, y, groups=clients)
    assert fitted.score(gaps, y) > 0.9
    with pytest.raises(ValueError, match="contains NaN"):
        pl.sklearn.FederatedClassifier(rounds=1).fit(gaps, y, groups=clients)


def test_several_targets_come_in_their_own_shape():
    x = RNG.normal(size=(60, 3))
    y = x @ RNG.normal(size=(3, 2)) * [1.0, 100.0] + [5.0, -1000.0]
    fitted = pl.sklearn.FederatedRegressor(rounds=60).fit(x, y, groups=np.arange(60) % 3)
    assert fitted.predict(x).shape == (60, 2)
    assert fitted.score(x, y) > 0.99


def test_pictures_are_rows_of_a_shape():
    x, y = load_digits(return_X_y=True)
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 5), torch.nn.Flatten(), torch.nn.Linear(32, 10)).double()
    fitted = pl.sklearn.FederatedClassifier(model=network, shape=(1, 8, 8), rounds=1, random_state=1)
    assert fitted.fit(x[:300], y[:300], groups=y[:300] % 3).predict(x[:4]).shape == (4,)
    with pytest.raises(pl.InputError, match="49 numbers, but X has 64 columns"):
        clone(fitted).set_params(shape=(7, 7)).fit(x[:300], y[:300], groups=y[:300])


def test_a_personal_method_predicts_by_client():
    x, y, clients = cancer()
    fitted = pl.sklearn.FederatedClassifier("local-only", rounds=3).fit(x, y, groups=clients)
    with pytest.raises(pl.InputError, match="name a client"):
        fitted.predict(x)
    both = [fitted, pickle.loads(pickle.dumps(fitted))]
    alone = clients[clients == "only"].index[:3]
    others = clients[clients == "a"].index[:3]
    rows = [*alone, *others, *alone]
    for each in both:
        outputs = each.outputs(x.loc[rows], clients[rows])
        own = fitted.run_.predict(x.loc[others].to_numpy(), client="a").numpy()
        np.testing.assert_array_equal(outputs[3:6], own)
        np.testing.assert_array_equal(outputs[:3], outputs[6:])
        assert each.score(x.loc[alone], y[alone], groups=clients[alone]) == 1.0


def test_settings_of_settings():
    boosted = pl.sklearn.FederatedClassifier(pl.FFGB(learner=pl.RegressionTree(depth=2)))
    assert boosted.get_params()["algorithm__learner__depth"] == 2
    assert boosted.set_params(algorithm__learner__depth=4).algorithm.learner == pl.RegressionTree(depth=4)
    estimator = pl.sklearn.FederatedClassifier()
    assert estimator.get_params()["algorithm__batch"] == 32
    estimator.set_params(algorithm__steps=5, algorithm__lr=0.5, model="mlp", model__hidden=(7,), rounds=3)
    assert (estimator.algorithm, estimator.rounds) == (pl.FedAvg(lr=0.5, steps=5), 3)
    assert estimator.model == pl.models.mlp(7)
    assert clone(estimator).get_params() == estimator.get_params()
    with pytest.raises(pl.InputError, match="algorithm has no setting 'rate'"):
        estimator.set_params(algorithm__rate=1.0)
    with pytest.raises(ValueError, match="Invalid parameter 'lr'"):
        estimator.set_params(lr=1.0)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_a_grid_over_clients(routing: None):
    """GroupKFold leaves whole clients out; one word, `groups`, serves the folds and the fits."""
    x, y, clients = cancer()
    estimator = pl.sklearn.FederatedClassifier(rounds=3)
    grid = {"algorithm__lr": [1e-6, 0.1], "algorithm__batch": [16]}
    search = GridSearchCV(estimator, grid, cv=GroupKFold(3), error_score="raise").fit(x, y, groups=clients)
    assert search.best_params_["algorithm__lr"] == 0.1
    assert set(search.best_estimator_.clients_) == set(clients)
    scores = []
    for train, test in GroupKFold(3).split(x, y, clients):
        fold = clone(search.best_estimator_).fit(x.iloc[train], y.iloc[train], groups=clients.iloc[train])
        assert not set(clients.iloc[test]) & set(fold.clients_)
        scores.append(fold.score(x.iloc[test], y.iloc[test]))
    assert search.cv_results_["mean_test_score"][1] == pytest.approx(np.mean(scores))


def test_a_pipeline_routes_the_clients(routing: None):
    x, y, clients = cancer()
    estimator = pl.sklearn.FederatedBoostingClassifier(rounds=2)
    pipeline = make_pipeline(MinMaxScaler(), estimator)
    result = cross_validate(
        pipeline, x, y, cv=LeaveOneGroupOut(), params={"groups": clients}, return_estimator=True, error_score="raise"
    )
    assert [len(fitted[-1].clients_) for fitted in result["estimator"]] == [4] * 5


def test_a_grid_without_routing_warns_that_fits_see_no_groups():
    x, y, clients = cancer()
    search = GridSearchCV(pl.sklearn.FederatedClassifier(rounds=2), {"rounds": [1, 2]}, cv=GroupKFold(2))
    with pytest.warns(pl.ParleyWarning, match="no clients were named"):
        search.fit(x, y, groups=clients)


@pytest.mark.parametrize("name", SMALL)
def test_copies_go_without_training_rows(name: str):
    x, y, clients = RNG.normal(size=(200, 3)), RNG.integers(0, 3, 200), np.arange(200) % 4
    estimator = clone(SMALL[name])
    fitted = estimator.fit(x, y, groups=clients)
    packed = pickle.dumps(fitted)
    for row in x[:50]:
        assert row.tobytes() not in packed
        assert row[:1].tobytes() not in packed
    again = pickle.loads(packed)
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))
    assert not list(again.run_.clients_with_memory())
    with pytest.raises(pl.InputError, match="goes without the samples"):
        again.run_.federation.client("0")


@pytest.mark.parametrize("name", SMALL)
def test_what_is_refused(name: str):
    x, y = RNG.normal(size=(20, 3)), np.arange(20) % 2
    estimator = clone(SMALL[name])
    with pytest.raises(NotFittedError):
        estimator.predict(x)
    with pytest.raises(TypeError, match="dense data is required"):
        estimator.fit(csr_matrix(x), y, groups=y)
    with pytest.raises(pl.InputError, match="20 rows, but there are 19 clients"):
        estimator.fit(x, y, groups=y[1:])
    with pytest.raises(pl.InputError, match="is no client"):
        estimator.fit(x, y, groups=[None, *y[1:]])
    with pytest.warns(pl.ParleyWarning, match="no clients were named"):
        estimator.fit(x, y)


def test_standardising_is_refused_where_privacy_would_not_cover_it():
    x, y = RNG.normal(size=(40, 3)), np.arange(40) % 2
    private = pl.sklearn.FederatedClassifier(rounds=2, privacy=PRIVACY, cohort=2)
    with pytest.raises(pl.InputError, match="privacy does not cover"):
        private.fit(x, y, groups=np.arange(40) % 4)
    private.set_params(standardise=False).fit(x, y, groups=np.arange(40) % 4)
    assert private.run_.last("privacy/epsilon") > 0


def test_scikit_learn_loads_with_the_estimators_only():
    code = "import sys, parley as pl; pl.FedAvg; assert 'sklearn' not in sys.modules; pl.sklearn.FederatedClassifier"
    subprocess.run([sys.executable, "-c", code], check=True)

"""Judging over all clients' samples from counts: against scikit-learn on the pooled scores."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix, roc_auc_score

import parley as pl
from parley.core.errors import InputError
from parley.training.pooled import BINS, CENTERS, EDGES, Counts


def rare(n: int = 20_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits and classes, 5% positives."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.05).astype(int)
    return -3 + 1.5 * y + 1.2 * rng.normal(size=n), y


def counts(score: np.ndarray, y: np.ndarray) -> Counts:
    return Counts.of(torch.tensor(np.stack([np.zeros_like(score), score], 1)), torch.from_numpy(y))


def parts(score: np.ndarray, y: np.ndarray) -> list[Counts]:
    """Sorted by class, uneven, one of a single sample."""
    order = np.argsort(y, kind="stable")
    return [counts(score[rows], y[rows]) for rows in np.split(order, [1, 50, 700, len(y) - 300])]


@pytest.mark.parametrize("wide", [0.1, 1, 30])
def test_auc_lies_in_its_interval_and_that_is_narrow(wide):
    score, y = rare()
    total = Counts.total(parts(score * wide, y))
    auc, off = total.auc
    exact = roc_auc_score(y, score)
    assert abs(auc - exact) <= off
    assert off < (0.1 if wide < 1 else 0.02)
    if wide == 1:
        assert abs(auc - exact) < 6e-4
    fall_out, recall = total.roc
    assert np.trapezoid(recall, fall_out) == pytest.approx(auc, abs=1e-12)


def test_sums_over_clients_are_the_counts_of_pooled_samples():
    score, y = rare()
    whole, total = counts(score, y), Counts.total(parts(score, y))
    assert np.array_equal(whole.confusion, total.confusion)
    assert np.array_equal(whole.scores, total.scores)
    assert np.array_equal(whole.confusion, confusion_matrix(y, score > 0))
    assert whole.balance.tolist() == np.bincount(y).tolist()


def test_several_classes_count_right_and_wrong():
    rng = np.random.default_rng(1)
    z, y = torch.from_numpy(rng.normal(size=(500, 4))), torch.from_numpy(rng.integers(0, 4, 500))
    z[3] = torch.nan
    found = Counts.of(z, y)
    known = torch.isfinite(z).all(1)
    predicted = z.argmax(1)[known]
    assert np.array_equal(found.confusion, confusion_matrix(y[known], predicted))
    assert found.scores.sum(1).tolist() == [int((predicted != y[known]).sum()), int((predicted == y[known]).sum())]
    assert (found.lost, found.samples) == (1, 500)
    assert np.isnan([found.auc[0], found.calibration_error]).all()
    top = torch.softmax(z[known], 1).max(1).values
    score = torch.logit(top).numpy()
    assert np.array_equal(np.bincount(np.searchsorted(EDGES, score, side="right"), minlength=BINS), found.scores.sum(0))


def test_platt_is_logistic_regression_of_the_pooled_scores():
    score, y = rare(60_000)
    slope, shift = Counts.total(parts(2 * score + 1, y)).recalibrated("platt")
    oracle = LogisticRegression(C=np.inf).fit((2 * score + 1)[:, None], y)
    assert slope == pytest.approx(oracle.coef_[0, 0], rel=0.005)
    assert shift == pytest.approx(oracle.intercept_[0], abs=0.01)
    temperature, none = Counts.total(parts(2 * score, y)).recalibrated("temperature")
    free = LogisticRegression(C=np.inf, fit_intercept=False).fit(2 * score[:, None], y)
    assert none == 0
    assert temperature == pytest.approx(free.coef_[0, 0], rel=0.005)


def test_separated_classes_have_a_recalibration_and_one_class_has_none():
    score = np.array([-3.0, -2.0, 2.0, 3.0])
    slope, shift = counts(score, np.array([0, 0, 1, 1])).recalibrated("platt")
    assert np.isfinite([slope, shift]).all()
    assert slope > 0
    with pytest.raises(InputError, match="both classes"):
        counts(score, np.zeros(4, int)).recalibrated("platt")


def test_calibrated_scores_have_a_small_error():
    rng = np.random.default_rng(2)
    score = rng.normal(-2, 1.5, 40_000)
    y = (rng.random(40_000) < 1 / (1 + np.exp(-score))).astype(int)
    assert counts(score, y).calibration_error < 0.006
    assert counts(3 * score, y).calibration_error > 0.03
    assert len(CENTERS) == BINS


def test_two_bins_are_recalibrated_to_platts_targets():
    score, y = np.repeat([-2.05, 3.05], [6, 3]), np.repeat([0, 1], [6, 3])
    slope, shift = counts(score, y).recalibrated("platt")
    said = 1 / (1 + np.exp(-(slope * np.array([-2.05, 3.05]) + shift)))
    assert said == pytest.approx([1 / (6 + 2), (3 + 1) / (3 + 2)], abs=1e-6)


def test_calibration_groups_are_of_equal_size_where_bins_allow_it():
    middles = CENTERS[BINS // 2 - 10 : BINS // 2 + 10]
    score, y = np.repeat(middles, 4), np.tile([0, 0, 0, 1], 20)
    said, true, sizes = counts(score, y).calibration(groups=5)
    assert sizes.tolist() == [16] * 5
    assert true.tolist() == [0.25] * 5
    assert said == pytest.approx((1 / (1 + np.exp(-middles))).reshape(5, 4).mean(1), abs=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said["scores"].__setitem__(5, -1),
        lambda said: said["scores"].__setitem__(5, 1.5),
        lambda said: said["scores"].__setitem__(5, said["scores"][5] + 1),
        lambda said: said["confusion"].append(0),
        lambda said: said.update(confusion=[]),
    ],
)
def test_counts_that_a_node_makes_up_are_refused(change):
    found = counts(*rare(500))
    said = json.loads(found.text)
    assert np.array_equal(Counts.read(said).scores, found.scores)
    change(said)
    with pytest.raises(ValueError, match="counts"):
        Counts.read(said)


def hospitals(seed: int = 0) -> pl.Federation:
    rng = np.random.default_rng(seed)
    clients = {}
    for name, n, share in (("north", 400, 0.1), ("south", 150, 0.05), ("isle", 30, 0.0), ("one", 1, 1.0)):
        y = (rng.random(n) < share).astype(int)
        clients[name] = ((rng.normal(size=(n, 3)) + y[:, None]).astype(np.float32), y)
    return pl.Federation.from_arrays(clients, test_fraction=0.4)


@pytest.mark.parametrize("runtime", ["inline", "stacked", "wire"])
def test_a_run_judges_all_clients_together(runtime):
    federation = hospitals()
    settings = pl.Evaluation(metrics=("auc",), pooled=True, headline="pooled/auc")
    run = pl.train(
        pl.FedAvg(lr=0.1, steps=3), federation, model=pl.models.linear(), rounds=3, evaluation=settings, runtime=runtime
    )
    tests = [federation.client_test(name) for name in federation.ids[:3]]
    x, y = torch.cat([one.x for one in tests]), torch.cat([one.y for one in tests])
    z = run.predict(x, scaled=True)
    exact = roc_auc_score(y, (z[:, 1] - z[:, 0]).double())
    assert abs(run.last("pooled/auc") - exact) <= run.last("pooled/auc/off-by") + 1e-6
    assert run.last("pooled/accuracy") == pytest.approx(float((z.argmax(1) == y).double().mean()))
    assert run.last("pooled/loss") == pytest.approx(float(torch.nn.functional.cross_entropy(z, y)), rel=1e-5)
    assert run.headline is not None
    assert (run.headline.name, run.best_value) == ("pooled/auc", run.best("pooled/auc"))
    assert run.summary()["clients/auc/clients"] == "2 of 3"
    assert run.counts is not None
    assert run.counts.samples == len(y)


def test_recalibrated_outputs_leave_the_house_the_same_way(tmp_path):
    federation = hospitals()
    settings = pl.Evaluation(pooled=True)
    with pl.RunStore(tmp_path / "runs.db") as store:
        run = pl.train(
            pl.FedAvg(lr=0.1, steps=3), federation, model=pl.models.linear(), rounds=3, evaluation=settings, store=store
        )
        again = pl.load_run(
            store,
            run.id,
            pl.Study(pl.FedAvg(lr=0.1, steps=3), federation, model=pl.models.linear(), rounds=3, evaluation=settings),
        )
        page = pl.report.write_report(store, [run.id], tmp_path / "page.html").read_text()
    assert "Discrimination and calibration" in page
    assert "Confusion matrix" in page
    x = federation.client("north").x
    slope, shift = run.counts.recalibrated("platt")
    plain, fitted = run.predict(x), again.predict(x, recalibrate="platt")
    assert torch.allclose(fitted[:, 1] - fitted[:, 0], slope * (plain[:, 1] - plain[:, 0]) + shift, atol=1e-5)
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime and the extra onnx")
    run.export(tmp_path / "model", recalibrate="platt")
    card = json.loads((tmp_path / "model" / "card.json").read_text())
    assert card["output"]["recalibration"] == {"method": "platt", "slope": slope, "shift": shift}
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx")
    assert torch.allclose(torch.from_numpy(session.run(None, {"input": x.numpy()})[0]), fitted, atol=1e-6)
    with pytest.raises(InputError, match="leave out best"):
        run.predict(x, best=True, recalibrate="platt")


def test_what_cannot_be_pooled_is_refused():
    rng = np.random.default_rng(0)
    numbers = pl.Federation.from_arrays({"a": (rng.normal(size=(20, 2)), rng.normal(size=20))}, test_fraction=0.5)
    settings = pl.Evaluation(pooled=True)
    with pytest.raises(InputError, match="supports classification"):
        pl.train(pl.FedAvg(), numbers, model=pl.models.linear(), rounds=1, evaluation=settings)
    with pytest.raises(InputError, match="pooled = true"):
        pl.train(
            pl.FedAvg(),
            hospitals(),
            model=pl.models.linear(),
            rounds=1,
            evaluation=pl.Evaluation(headline="pooled/auc"),
        )
    run = pl.train(pl.FedAvg(), hospitals(), model=pl.models.linear(), rounds=1)
    with pytest.raises(InputError, match="pooled = true"):
        run.predict(torch.zeros(2, 3), recalibrate="platt")


def test_a_client_whose_counts_do_not_fit_is_left_out():
    from dataclasses import replace

    from parley.engine.evaluation import Evaluator
    from parley.runtimes.protocol import Score

    evaluator = object.__new__(Evaluator)
    federation = hospitals()
    evaluator.settings, evaluator.failures = pl.Evaluation(pooled=True), []
    evaluator.job = type("Job", (), {"task": type("Task", (), {"info": federation.info})})
    fits = Score(1.0, 2.0, 500, 500, counts=counts(*rare(500)))
    other = replace(fits, counts=Counts.of(torch.randn(500, 3), torch.randint(3, (500,))))
    scores = {"a": fits, "b": other, "c": replace(fits, positions=499), "d": replace(fits, counts=None)}
    assert list(evaluator._counted(scores)) == ["a"]
    assert [failure.client for failure in evaluator.failures] == ["b", "c", "d"]

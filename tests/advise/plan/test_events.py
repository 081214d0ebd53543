"""Advice for tables with few events."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import parley as pl
from parley.advise.plan.events import Events
from parley.algorithms.averaging.server import Descent
from parley.core.errors import InputError
from tests.data.test_encoding import federation, patients


def study(n: int, share: float, test_fraction: float = 0.0, **settings) -> pl.Study:
    rng = np.random.default_rng(0)
    y = (rng.random(n) < share).astype(int)
    x = (rng.normal(size=(n, 6)) + y[:, None]).astype(np.float32)
    parts = np.array_split(np.arange(n), 3)
    federation = pl.Federation.from_arrays(
        {str(i): (x[rows], y[rows]) for i, rows in enumerate(parts)}, test_fraction=test_fraction
    )
    return pl.Study(pl.FedAvg(batch=0), federation, model=pl.models.mlp(8), rounds=20, **settings)


def test_events_are_the_rarer_class_of_the_training_samples():
    rare, common = study(600, 0.05), study(600, 0.5)
    events = Events.of(rare)
    labels = np.concatenate([rare.federation().client(i).y for i in rare.federation().ids])
    assert (events.rarer, events.samples, events.weights) == (labels.sum(), 600, 7)
    assert events.few
    assert not Events.of(common).few
    numbers = pl.Federation.from_arrays({"a": (np.zeros((9, 2)), np.arange(9.0))})
    assert Events.of(pl.Study(pl.FedAvg(), numbers, model=pl.models.linear(), rounds=1)) is None


def test_few_events_are_advised_a_penalised_regression_that_stops_by_held_out_loss():
    asked = study(600, 0.05, test_fraction=0.3)
    advice = pl.advise(asked, gain=False)
    best = advice.best
    assert advice.named("model").value == "penalised logistic regression"
    samples = sum(len(asked.federation().client(i)) for i in asked.federation().ids)
    assert best.algorithm.options == {"weight_decay": pytest.approx(1 / samples)}
    assert best.algorithm.server == Descent(1.0)
    L = advice.measured.quadratic.largest
    assert best.algorithm.lr <= 1.001 / L
    assert (best.evaluation.headline, best.evaluation.patience) == ("clients/loss", 5)
    run = pl.train(best)
    assert run.best_value == run.best("clients/loss")
    assert sum(p.numel() for p in run.network().parameters()) == 14


def test_a_target_of_the_study_keeps_its_model():
    asked = study(600, 0.05, test_fraction=0.3, evaluation=pl.Evaluation(metric="loss", target=0.3))
    advice = pl.advise(asked, gain=False)
    assert "model" not in {one.what for one in advice.recommendations}
    assert advice.best.evaluation == asked.evaluation


def test_the_regression_is_led_to_the_penalised_one_of_pooled_rows():
    """Steps are chosen on the loss with the penalty: after the budget its excess is small against what there was."""
    asked = study(600, 0.05)
    asked = replace(asked, rounds=60)
    advice = pl.advise(asked, gain=False)
    pooled = [asked.federation().client(i) for i in asked.federation().ids]
    x, y = (torch.cat([getattr(own, name) for own in pooled]).double().numpy() for name in "xy")
    z = np.concatenate([x, np.ones((len(x), 1))], axis=1)

    def loss(w: np.ndarray) -> float:
        """Two columns of weights of a softmax."""
        scores = z @ w.reshape(7, 2)
        chosen = scores[np.arange(len(y)), y.astype(int)]
        return float((np.logaddexp(*scores.T) - chosen).mean() + (w**2).sum() / 2 / len(y))

    least = minimize(loss, np.zeros(14)).fun
    found = {name: p.detach().double().numpy() for name, p in pl.train(advice.best).network().named_parameters()}
    weight, bias = (next(value for value in found.values() if value.ndim == n) for n in (2, 1))
    reached = loss(np.concatenate([weight.T, bias[None]]).reshape(-1))
    assert reached - least < 0.05 * (np.log(2) - least)


def test_texts_and_gaps_are_refused_in_the_sentence_of_training():
    for gaps, categories, words in ((0.1, ["pain", "stage"], "columns of texts"), (0.1, [], "missing values")):
        table = patients(gaps=gaps).drop(columns=[] if categories else ["pain", "stage"])
        asked = pl.Study(pl.FedAvg(), federation(table, categories=categories), model=pl.models.linear(), rounds=3)
        with pytest.raises(InputError, match=words):
            pl.advise(asked)

"""Advice for tables with few events."""

from __future__ import annotations

import numpy as np
import pytest

import parley as pl
from parley.advise.plan.events import Events


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
    assert (best.evaluation.headline, best.evaluation.patience) == ("clients/loss", 5)
    run = pl.train(best)
    assert run.best_value == run.best("clients/loss")
    assert sum(p.numel() for p in run.network().parameters()) == 14


def test_a_target_of_the_study_keeps_its_model():
    asked = study(600, 0.05, test_fraction=0.3, evaluation=pl.Evaluation(metric="loss", target=0.3))
    advice = pl.advise(asked, gain=False)
    assert "model" not in {one.what for one in advice.recommendations}
    assert advice.best.evaluation == asked.evaluation

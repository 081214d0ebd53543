"""Class weights: balanced by federated counts, part of the training loss."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.utils.class_weight import compute_class_weight

import parley as pl
from parley.core.errors import InputError
from parley.statistics.run import Statistics
from parley.study.toml import to_toml


def rare(rows: int = 300) -> pl.Federation:
    rng = np.random.default_rng(0)
    y = (rng.random(rows) < 0.2).astype(int)
    x = (rng.normal(size=(rows, 3)) + y[:, None]).astype(np.float64)
    parts = np.split(np.arange(rows), [130, 220])
    return pl.Federation.from_arrays({f"c{i}": (x[own], y[own]) for i, own in enumerate(parts)})


def counted(data: pl.Federation) -> Statistics:
    return pl.statistics(data, floor=1, runtime="inline")


def study(data: pl.Federation, rounds: int = 5, model: pl.models.ModelSpec | None = None) -> pl.Study:
    agreed = counted(data).preprocessing("none", class_weight="balanced")
    method = pl.FedAvg(lr=0.5, steps=1, batch=0)
    return pl.Study(method, data, model=model or pl.models.linear(zero=True), rounds=rounds, preprocessing=agreed)


def test_weights_and_regression_are_those_of_scikit_learn():
    data = rare()
    x, y = (torch.cat([getattr(data.client(i), name) for i in data.ids]).numpy() for name in "xy")
    asked = study(data, rounds=600)
    np.testing.assert_allclose(
        asked.preprocessing.class_weights, compute_class_weight("balanced", classes=np.unique(y), y=y)
    )
    theirs = LogisticRegression(class_weight="balanced", C=np.inf, tol=1e-10, max_iter=1000).fit(x, y)
    logits = pl.train(asked, runtime="stacked").predict(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], theirs.decision_function(x), atol=1e-4)


@pytest.mark.parametrize("model", [pl.models.linear(), pl.models.mlp(4)])
def test_all_runtimes_weigh_alike(model):
    asked = study(rare(), model=model)
    inline, *others = (pl.train(asked, runtime=name, workers=2) for name in ("inline", "pool", "wire", "stacked"))
    unweighted = pl.train(
        replace(asked, preprocessing=replace(asked.preprocessing, class_weights=())), runtime="inline"
    )
    x = rare().client("c0").x
    for run in others:
        torch.testing.assert_close(run.predict(x), inline.predict(x), rtol=1e-9, atol=1e-9)
    assert (unweighted.predict(x) - inline.predict(x)).abs().max() > 1e-3


def test_a_study_keeps_them():
    asked = study(rare())
    section = tomllib.loads(to_toml(asked.resolved() | {"data": {"name": "iris"}}))["preprocessing"]
    assert section["class_weights"] == list(asked.preprocessing.class_weights)
    plain = replace(asked, preprocessing=replace(asked.preprocessing, class_weights=()))
    assert "class_weights" not in plain.resolved()["preprocessing"]


def test_what_cannot_weigh_refuses():
    data = rare()
    asked = study(data)
    for method, model in (
        (pl.HistogramBoosting(), None),
        (pl.CpNtkFL(), pl.models.mlp(4)),
        (pl.TCT(), pl.models.mlp(4)),
    ):
        with pytest.raises(InputError, match="class weights"):
            pl.train(replace(asked, algorithm=method, model=model, rounds=2), runtime="inline")
    with pytest.raises(InputError, match="must hold positive numbers"):
        pl.Preprocessing(class_weights=(1.0, 0.0))
    with pytest.raises(InputError, match="class_weights has 3 numbers"):
        pl.Preprocessing(class_weights=(1.0, 1.0, 1.0)).apply(data)
    with pytest.raises(InputError, match="balanced or left out"):
        counted(data).preprocessing("none", class_weight="heavy")
    with pytest.raises(InputError, match="no client may tell of samples of class"):
        pl.statistics(data, floor=100, runtime="inline").preprocessing("none", class_weight="balanced")

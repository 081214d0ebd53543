"""Regression targets: scaled for training by what clients told, in their own unit in all that is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import parley as pl
from parley.core.errors import InputError
from parley.secure import SecureSum
from parley.store.runs import RunStore

SHIFT, SPREAD = 4000.0, 250.0


def houses(rows: int = 240, test_fraction: float = 0.2, columns: int = 1) -> pl.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3)) * (1.0, 20.0, 3.0)
    y = SHIFT + SPREAD * (x[:, 0] + 0.05 * x[:, 1] + 0.1 * rng.normal(size=rows))
    y = y if columns == 1 else np.stack([y, -y / 7], axis=1)
    parts = np.array_split(np.arange(rows), 3)
    return pl.Federation.from_arrays(
        {f"c{i}": (x[own], y[own]) for i, own in enumerate(parts)}, test=(x[:50], y[:50]), test_fraction=test_fraction
    )


def study(data: pl.Federation, target: str = "standard", **more) -> pl.Study:
    agreed = pl.statistics(data, runtime="inline", channels=more.pop("channels", ())).preprocessing(
        "standard", target=target
    )
    evaluation = pl.Evaluation(metrics=("rmse", "r2"), clients="all")
    return pl.Study(
        pl.FedAvg(lr=0.1, steps=5, batch=0),
        data,
        model=pl.models.linear(),
        rounds=12,
        preprocessing=agreed,
        evaluation=evaluation,
        **more,
    )


@pytest.mark.parametrize("columns", [1, 2])
def test_the_scaling_is_that_of_pooled_targets_and_predictions_are_in_their_unit(columns):
    data = houses(columns=columns)
    asked = study(data)
    y = torch.cat([data.client(i).y for i in data.ids]).double().reshape(-1, columns)
    np.testing.assert_allclose(asked.preprocessing.target_center, y.mean(0), rtol=1e-12)
    np.testing.assert_allclose(asked.preprocessing.target_scale, y.std(0, correction=0), rtol=1e-12)
    run = pl.train(asked, runtime="inline")
    predicted, truth = run.predict(data.test.x), data.test.y.reshape(-1, columns)
    error = float(((predicted - truth) ** 2).mean().sqrt())
    assert run.last("central/rmse") == pytest.approx(error, rel=1e-6)
    assert error < 0.4 * float(truth.std(0).mean())
    assert run.last("central/loss") < 1


@pytest.mark.parametrize("runtime", ["stacked", pytest.param("pool", marks=pytest.mark.long), "wire"])
def test_it_is_as_if_the_targets_had_been_scaled_outside(runtime):
    data = houses()
    asked = study(data)
    center, scale = asked.preprocessing.target_center[0], asked.preprocessing.target_scale[0]
    outside = {i: (data.client(i).x, (data.client(i).y - center) / scale) for i in data.ids}
    plain = replace(
        asked,
        data=pl.Federation.from_arrays(outside),
        evaluation=pl.Evaluation(),
        preprocessing=replace(asked.preprocessing, target_center=(), target_scale=()),
    )
    inside, beside = (pl.train(each, runtime=runtime, workers=2) for each in (asked, plain))
    rows = data.test.x
    torch.testing.assert_close(inside.predict(rows), beside.predict(rows) * scale + center, rtol=1e-10, atol=0)


def test_secure_sums_give_the_same_numbers():
    data = houses()
    plain, secure = (study(data, channels=channels).preprocessing for channels in ((), [SecureSum()]))
    assert (plain.target_center, plain.target_scale) == (secure.target_center, secure.target_scale)


@pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning")
def test_an_exported_model_predicts_in_the_targets_unit(tmp_path: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    data = houses()
    with RunStore(tmp_path / "runs.db") as store:
        run = pl.train(study(data), store=store, runtime="inline")
        again = pl.load_run(store, run.id)
    run.export(tmp_path / "out")
    rows = data.test.x[:9]
    expected = run.predict(rows)
    torch.testing.assert_close(again.predict(rows), expected)
    torch.testing.assert_close(torch.jit.load(str(next((tmp_path / "out").glob("*.pt"))))(rows), expected)
    session = onnxruntime.InferenceSession(str(next((tmp_path / "out").glob("*.onnx"))))
    found = session.run(None, {session.get_inputs()[0].name: rows.numpy()})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    card = next((tmp_path / "out").glob("*.md")).read_text()
    assert f"times {run.task.info.target_scale[0]}" in card
    assert "not done in safetensors" in card


def test_trees_of_scaled_targets_are_exported_in_the_targets_unit(tmp_path: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    data = houses()
    asked = replace(study(data), algorithm=pl.HistogramBoosting(depth=2), model=None, rounds=5)
    run = pl.train(asked, runtime="inline")
    run.export(tmp_path / "out")
    rows = data.test.x[:9]
    session = onnxruntime.InferenceSession(str(next((tmp_path / "out").glob("*.onnx"))))
    found = session.run(None, {session.get_inputs()[0].name: rows.numpy()})[0]
    np.testing.assert_allclose(found, run.predict(rows), rtol=1e-5)
    assert abs(float(run.predict(rows).mean()) - SHIFT) < 2 * SPREAD


def test_importance_is_measured_in_the_targets_unit():
    data = houses()
    run = pl.train(study(data), runtime="inline")
    found = pl.importance(run, "permutation", metric="rmse")
    assert max(found.values()) > SPREAD / 10


def test_what_makes_no_sense_is_refused():
    with pytest.raises(InputError, match="as many numbers as each other"):
        pl.Preprocessing(target_center=(1.0,))
    with pytest.raises(InputError, match="target_scale has 2 numbers"):
        pl.Preprocessing(target_center=(0.0, 0.0), target_scale=(1.0, 1.0)).apply(houses())
    x = np.random.default_rng(0).normal(size=(40, 2))
    classes = pl.Federation.from_arrays({"a": (x, (x[:, 0] > 0).astype(int)), "b": (x, (x[:, 1] > 0).astype(int))})
    with pytest.raises(InputError, match="the target is a class"):
        pl.statistics(classes, runtime="inline").preprocessing("standard", target="standard")

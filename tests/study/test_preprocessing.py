"""Preprocessing that was agreed on: training with it gives the bits of training on data that were treated by hand."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import parley as pl
from parley.core.errors import InputError
from parley.data import scaling
from parley.data.sources import InMemory
from parley.engine.settings import Evaluation
from parley.statistics.run import frozen_table
from parley.study.predict import read_inputs
from parley.study.stored import load_run
from parley.study.toml import study_from_dict, to_toml

COLUMNS = ("age", "dose", "pulse")
NAMES = ("ill", "well")


def raw(names: tuple[str, ...] = NAMES, missing: bool = False, order: tuple[int, ...] = (0, 1, 2)) -> pl.Federation:
    rng = np.random.default_rng(0)
    parts, held = [], []
    for i in range(3):
        x = (rng.normal(size=(40, 3)) * [10, 0.1, 1] + [50 + i, 3, 0]).astype(np.float32)
        y = (x[:, 0] + 100 * x[:, 1] > 351).astype(np.int64)
        if missing:
            x[rng.random(x.shape) < 0.1] = np.nan
        y = np.array([names.index(NAMES[k]) for k in y])
        data = [
            pl.ClientData(torch.from_numpy(x[own][:, list(order)]), torch.from_numpy(y[own]))
            for own in (slice(30), slice(30, 40))
        ]
        parts.append(data[0])
        held.append(data[1])
    columns = tuple(COLUMNS[k] for k in order)
    info = pl.DataInfo("table", (3,), 2, "classification", names, columns=columns, missing=missing)
    return pl.Federation(info, ("a", "b", "c"), InMemory(tuple(parts)), held_out=InMemory(tuple(held)))


def by_hand(federation: pl.Federation, center, scale, fill=None) -> pl.Federation:
    """Every sample with NumPy, in float64, rounded to float32 once."""

    def treated(data: pl.ClientData) -> pl.ClientData:
        x = data.x.numpy().astype(np.float64)
        x = x if fill is None else np.where(np.isnan(x), np.array(fill), x)
        return pl.ClientData(torch.from_numpy(((x - np.array(center)) / np.array(scale)).astype(np.float32)), data.y)

    sides = [
        InMemory(tuple(treated(get(id)) for id in federation.ids))
        for get in (federation.client, federation.client_test)
    ]
    info = replace(federation.info, missing=False)
    return pl.Federation(info, federation.ids, sides[0], held_out=sides[1])


def trained(federation: pl.Federation, runtime: str = "inline", **more) -> pl.Run:
    settings = {"model": pl.models.mlp(4), "rounds": 3, "runtime": runtime, "evaluation": Evaluation(clients="all")}
    return pl.train(pl.FedAvg(lr=0.1, steps=3, batch=8), federation, **(settings | {"workers": 1} | more))


def check_by_hand(runtime: str = "inline", missing: bool = False) -> None:
    """Weights and what is measured on held-out samples."""
    data = raw(missing=missing)
    agreed = pl.statistics(data, runtime="inline").preprocessing("standard", "mean" if missing else None)
    ours = trained(data, runtime, preprocessing=agreed)
    hand = trained(by_hand(data, agreed.center, agreed.scale, agreed.fill or None))
    assert all(torch.equal(value, ours.state.tensors[name]) for name, value in hand.state.tensors.items())
    assert ours.clients("clients/loss") == hand.clients("clients/loss")


@pytest.mark.parametrize(("runtime", "missing"), [("inline", False), ("inline", True), ("pool", False), ("wire", True)])
def test_training_gives_the_bits_of_data_normalised_by_hand(runtime: str, missing: bool):
    check_by_hand(runtime, missing)


def in_single_precision(patch: pytest.MonkeyPatch) -> None:
    def apply(self, x):
        return (x - torch.tensor(self.mean, dtype=x.dtype)) / torch.tensor(self.deviation, dtype=x.dtype)

    patch.setattr(scaling.Scaling, "apply", apply)


def forgets_held_out(patch: pytest.MonkeyPatch) -> None:
    honest = pl.Federation.scaled

    def scaled(self, how):
        done = honest(self, how)
        done.held_out = self.held_out
        return done

    patch.setattr(pl.Federation, "scaled", scaled)


@pytest.mark.parametrize("mistake", [in_single_precision, forgets_held_out])
def test_a_planted_mistake_is_found(mistake: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        check_by_hand()


@pytest.mark.parametrize("method", ["standard", "min-max", "robust"])
def test_the_three_normalisations(method):
    data = raw()
    found = pl.statistics(data, floor=1, runtime="inline")
    done = found.preprocessing(method).apply(data)
    x = torch.cat([done.client(id).x for id in done.ids]).double().numpy()
    if method == "standard":
        np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(x.std(axis=0), 1, rtol=1e-5)
    elif method == "min-max":
        np.testing.assert_allclose([x.min(axis=0), x.max(axis=0)], [[0] * 3, [1] * 3], atol=1e-6)
    else:
        low, middle, high = np.quantile(x, [0.25, 0.5, 0.75], axis=0, method="inverted_cdf")
        np.testing.assert_allclose(middle, 0, atol=1e-6)
        np.testing.assert_allclose(high - low, 1, atol=1e-6)


def test_columns_are_found_by_name_and_classes_by_theirs():
    """Data that came in another order and with classes numbered otherwise end as the same samples."""
    agreed = pl.statistics(raw(), runtime="inline").preprocessing()
    one, other = (agreed.apply(raw(*how)) for how in ((), (("well", "ill"), False, (2, 0, 1))))
    assert one.info.classes == other.info.classes == NAMES
    for id in one.ids:
        for a, b in ((one.client(id), other.client(id)), (one.client_test(id), other.client_test(id))):
            assert torch.equal(a.x[:, [2, 0, 1]], b.x)
            assert torch.equal(a.y, b.y)


def test_a_label_map_may_have_more_classes_than_the_data():
    done = pl.Preprocessing(classes=("dead", "ill", "well")).apply(raw())
    assert (done.info.outputs, done.info.classes) == (3, ("dead", "ill", "well"))
    assert done.info.scaling is None
    assert set(done.client("a").y.tolist()) == {1, 2}


def test_a_frozen_study_is_read_back_as_it_was(tmp_path: Path):
    table = {
        "rounds": 2,
        "data": {"name": "digits", "clients": 3, "standardise": True},
        "data_fingerprint": "old",
        "model": {"name": "linear"},
        "algorithm": {"name": "fedavg"},
    }
    agreed = pl.Preprocessing((0.1,), (1 / 3,), (), (), tuple("0123456789"), 77)
    text = to_toml(frozen_table(table, agreed))
    assert text is not None
    study = study_from_dict(tomllib.loads(text))
    assert study.preprocessing == agreed
    assert study_from_dict(study.resolved()).fingerprint() == study.fingerprint()
    assert replace(study, preprocessing=None).fingerprint() != study.fingerprint()
    run = pl.train(study, store=tmp_path / "runs.db", runtime="inline")
    again = load_run(tmp_path / "runs.db", run.id)
    assert again.task.info.scaling == run.task.info.scaling
    x = np.ones((2, 1, 8, 8), np.float32)
    np.savez(tmp_path / "new.npz", x=x)
    np.testing.assert_array_equal(read_inputs(tmp_path / "new.npz", again.task.info), x)
    by_hand = torch.from_numpy((x - 0.1) * 3).float()
    torch.testing.assert_close(again.predict(x), again.network()(by_hand).detach())
    with pytest.raises(InputError, match="started with preprocessing"):
        pl.train(replace(study, rounds=3, preprocessing=None), store=tmp_path / "runs.db", resume=run.id)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ({"center": (1.0,), "scale": (1.0, 2.0)}, "center has 1 numbers and scale 2"),
        ({"center": (1.0,), "scale": (0.0,)}, "scale must hold positive numbers"),
        ({"center": (float("nan"),), "scale": (1.0,)}, "center must hold finite numbers"),
        ({"center": (1.0,), "scale": (1.0,), "fill": (1.0, 2.0)}, "center has 1 numbers and fill 2"),
        ({"center": (1.0,), "scale": (1.0,), "columns": ("a", "b")}, "2 columns and 1 numbers"),
        ({"classes": ("a", "a")}, "classes has a name twice"),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(made, sentence: str):
    with pytest.raises(InputError, match=sentence):
        pl.Preprocessing(**made)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ({"center": (1.0,), "scale": (1.0,)}, "has 1 numbers, but 'table' has 3 columns"),
        ({"center": (1.0,) * 3, "scale": (1.0,) * 3, "columns": ("age", "dose", "puls")}, "column 'pulse', .* did you"),
        ({"classes": ("ill", "wel")}, "class 'well', which is not in the label map"),
    ],
)
def test_other_data_than_it_is_for_are_refused(made, sentence: str):
    with pytest.raises(InputError, match=sentence):
        trained(raw(), preprocessing=pl.Preprocessing(**made))
    with pytest.raises(InputError, match="is standardised already"):
        pl.Preprocessing((0.0,) * 3, (1.0,) * 3).apply(raw().standardised())
    with pytest.raises(InputError, match="must be a Preprocessing"):
        trained(raw(), preprocessing={"center": [1.0]})

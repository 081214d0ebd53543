"""What leaves the house: predictions, modules and exports are one model, for raw samples, never one nobody trained."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pandas
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from safetensors.torch import load_file
from torch import nn

import parley as pl
from parley.core.errors import InputError
from parley.study.predict import predict_file
from parley.study.stored import export_run, load_run
from parley.study.toml import study_from_dict

COLUMNS = ("age", "dose", "pulse")
NAMES = ("ill", "well")
FILL, CENTER, SCALE = (40.0, 0.5, 70.0), (51.0, 0.25, 80.0), (12.0, 0.125, 9.0)


def rows(seed: int, many: int = 40, missing: bool = False) -> np.ndarray:
    """Columns that are nothing like mean 0 and deviation 1."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(many, 3)) * [12, 0.1, 9] + [51, 0.25, 80]).astype(np.float32)
    if missing:
        x[rng.random(x.shape) < 0.2] = np.nan
    return x


def federation(kind: str = "classification", missing: bool = False, unit: bool = False) -> pl.Federation:
    data = {}
    for i in range(3):
        x = rows(i, missing=missing)
        score = np.nan_to_num(x[:, 0], nan=51) - 51 + 10 * i
        x = ((x - [51, 0.25, 80]) / [12, 0.1, 9]).astype(np.float32) if unit else x
        y = (score > 0).astype(np.int64) if kind == "classification" else (score / 15 - 0.6).astype(np.float32)
        data[f"site {i}"] = (x, y)
    classes = NAMES if kind == "classification" else ()
    info = pl.DataInfo("visits", (3,), len(classes) or 1, kind, classes, columns=COLUMNS, missing=missing)
    return pl.Federation.from_arrays(data, info=info, missing=missing)


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


WITHOUT_A_SERVER_MODEL: dict[str, tuple[pl.Algorithm, dict]] = {
    "local-only": (pl.LocalOnly(batch=8), {}),
    "ditto": (pl.Ditto(batch=8), {}),
    "fedrep": (pl.FedRep(batch=8), {}),
    "fedals, never averaged": (pl.FedALS(batch=8, alpha="never"), {}),
    "the average of personal models": (pl.EMA(of=pl.LocalOnly(batch=8)), {}),
    "statistics that stay with clients": (pl.FedAvg(batch=8), {"model": normalised, "buffers": "local"}),
}


@pytest.mark.parametrize("case", WITHOUT_A_SERVER_MODEL)
def test_no_model_of_the_servers_is_made_up(case: str, tmp_path: Path):
    """One sentence, whoever asks and for whatever; with a client, all give the client's model."""
    method, more = WITHOUT_A_SERVER_MODEL[case]
    study = pl.Study(method, federation(unit=True), **({"model": pl.models.mlp(4), "rounds": 2} | more))
    run = pl.train(study, store=tmp_path / "runs.db")
    np.savez(tmp_path / "new.npz", x=rows(9))
    asking: tuple[Callable[[], object], ...] = (
        lambda: run.predict(rows(9)),
        lambda: run.predict(rows(9), best=True),
        run.predictor,
        run.module,
        lambda: run.export(tmp_path / "model"),
        lambda: export_run(tmp_path / "runs.db", "last", tmp_path / "model", study=study),
        lambda: predict_file(run, tmp_path / "new.npz", tmp_path / "out.csv"),
    )
    sentences = set()
    for ask in asking:
        with pytest.raises(InputError) as refusal:
            ask()
        sentences.add(str(refusal.value))
    (sentence,) = sentences
    assert 'name a client: client="site 0" in Python, --client "site 0" on the command line' in sentence
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "out.csv").exists()

    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    wanted, module = run.predict(x, client="site 1"), run.module(client="site 1")
    with torch.no_grad():
        assert torch.equal(module(x), wanted)
    assert not torch.equal(wanted, run.predict(x, client="site 2"))
    run.export(tmp_path / "model", client="site 1", formats=["safetensors"])
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert weights.keys() == module.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("case", [case for case in WITHOUT_A_SERVER_MODEL if case != "ditto"])
def test_a_client_that_never_trained_has_no_model(case: str):
    method, more = WITHOUT_A_SERVER_MODEL[case]
    run = pl.train(method, federation(), **({"model": pl.models.mlp(4), "rounds": 1, "cohort": 1} | more))
    trained = next(run.clients_with_memory())
    absent = next(client for client in run.federation.ids if client != trained)
    for ask in (run.predict(rows(9), client=trained), run.module(client=trained)):
        assert ask is not None
    for refused in (lambda: run.predict(rows(9), client=absent), lambda: run.personal(absent)):
        with pytest.raises(InputError, match=f"client '{absent}' has no model of its own"):
            refused()


def by_hand(run: pl.Run, x: np.ndarray, center, scale, fill=None) -> np.ndarray:
    """Filled and scaled with NumPy, then through the bare weights: the layers of `mlp(4)` one by one."""
    raw = x.astype(np.float64)
    raw = raw if fill is None else np.where(np.isnan(raw), np.array(fill), raw)
    inner = torch.from_numpy(((raw - np.array(center)) / np.array(scale)).astype(np.float32))
    first, second, third, fourth = run.state["model"].values()
    return (torch.relu(inner @ first.T + second) @ third.T + fourth).numpy()


def prepared(kind: str, how: str) -> tuple[pl.Run, dict]:
    settings = {"model": pl.models.mlp(4), "rounds": 3}
    method = pl.FedAvg(batch=8, lr=0.1 if kind == "classification" else 0.001)
    if how == "standardised":
        data = federation(kind).standardised()
        scaling = data.info.scaling
        return pl.train(method, data, **settings), {"center": scaling.mean, "scale": scaling.deviation}
    agreed = pl.Preprocessing(CENTER, SCALE, FILL, COLUMNS)
    run = pl.train(method, federation(kind, missing=True), preprocessing=agreed, **settings)
    return run, {"center": CENTER, "scale": SCALE, "fill": FILL}


@pytest.mark.parametrize("how", ["standardised", "preprocessing"])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_raw_rows_give_the_same_numbers_every_way(kind: str, how: str, tmp_path: Path):
    run, numbers = prepared(kind, how)
    raw = rows(9, missing=how == "preprocessing")
    wanted = by_hand(run, raw, **numbers)
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(run.predict(raw), wanted, **close)
    assert np.array_equal(run.predict(raw.astype(np.float64)), run.predict(torch.from_numpy(raw)))
    assert torch.equal(run.predict(run.task.info.scaling.apply(torch.from_numpy(raw)), scaled=True), run.predict(raw))
    with torch.no_grad():
        assert torch.equal(run.module()(torch.from_numpy(raw)), run.predict(raw))

    np.savez(tmp_path / "new.npz", x=raw)
    predict_file(run, tmp_path / "new.npz", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        table = np.array([row[1:] if kind == "regression" else row[2:] for row in list(csv.reader(file))[1:]], float)
    shares = torch.softmax(torch.from_numpy(wanted).double(), 1).numpy() if kind == "classification" else wanted
    np.testing.assert_allclose(table, shares, rtol=1e-3, atol=1e-5)

    run.export(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit.load` is deprecated", category=DeprecationWarning)
        script = torch.jit.load(str(tmp_path / "model" / "model.torchscript.pt"))
    np.testing.assert_allclose(script(torch.from_numpy(raw)).detach(), wanted, **close)
    (out,) = ReferenceEvaluator(onnx.load(tmp_path / "model" / "model.onnx")).run(None, {"input": raw})
    np.testing.assert_allclose(out, wanted, **close)
    runtime = pytest.importorskip("onnxruntime")
    (out,) = runtime.InferenceSession(tmp_path / "model" / "model.onnx").run(None, {"input": raw})
    np.testing.assert_allclose(out, wanted, **close)


@pytest.mark.parametrize("how", ["standardised", "preprocessing"])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_an_export_says_what_goes_in_and_what_comes_out(kind: str, how: str, tmp_path: Path):
    """Whoever has the folder alone gets the predictions from its weights."""
    run, numbers = prepared(kind, how)
    run.export(tmp_path / "model", formats=["safetensors"])
    card = json.loads((tmp_path / "model" / "card.json").read_text())
    assert card["input"]["columns"] == list(COLUMNS)
    done = card["input"]["preprocessing"]
    assert done == {"center": list(numbers["center"]), "scale": list(numbers["scale"])} | (
        {"fill": list(FILL)} if how == "preprocessing" else {}
    )
    assert card["output"]["meaning"] == ("logits" if kind == "classification" else "values")
    assert card["output"].get("classes") == (list(NAMES) if kind == "classification" else None)
    assert [file["takes"] for file in card["files"]] == ["preprocessed inputs"]

    raw = rows(9, missing=how == "preprocessing")
    x = np.where(np.isnan(raw), done["fill"], raw.astype(np.float64)) if "fill" in done else raw.astype(np.float64)
    x = torch.from_numpy(((x - done["center"]) / done["scale"]).astype(np.float32))
    first, second, third, fourth = (
        load_file(tmp_path / "model" / "model.safetensors")[name] for name in run.state["model"]
    )
    torch.testing.assert_close(torch.relu(x @ first.T + second) @ third.T + fourth, run.predict(raw))

    page = (tmp_path / "model" / "README.md").read_text()
    assert "age, dose, pulse" in page
    words = "logits of the classes, in this order: ill, well" if kind == "classification" else "values"
    assert words in page
    for name, center, scale in zip(COLUMNS, numbers["center"], numbers["scale"], strict=True):
        line = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert [float(cell) for cell in cells[-2:]] == [center, scale]


def test_an_export_without_preprocessing_says_so(tmp_path: Path):
    run = pl.train(pl.FedAvg(batch=8), federation(), model=pl.models.mlp(4), rounds=1)
    run.export(tmp_path / "model", formats=["safetensors"])
    card = json.loads((tmp_path / "model" / "card.json").read_text())
    assert card["input"]["preprocessing"] is None
    assert [file["takes"] for file in card["files"]] == ["raw inputs"]
    assert "Inputs are taken as they are" in (tmp_path / "model" / "README.md").read_text()


def test_trees_that_were_trained_on_scaled_rows_take_raw_ones(tmp_path: Path):
    run = pl.train(pl.HistogramBoosting(depth=2), federation().standardised(), rounds=3)
    raw = rows(9)
    run.export(tmp_path / "model")
    (out,) = ReferenceEvaluator(onnx.load(tmp_path / "model" / "model.onnx")).run(None, {"input": raw})
    np.testing.assert_allclose(out, run.predict(raw), rtol=1e-4, atol=1e-5)


def test_samples_that_do_not_fit_are_refused_like_those_of_files():
    run, _ = prepared("classification", "standardised")
    bad = rows(9)
    for x, sentence in (
        (bad[:, :2], r"x has samples of shape \(2,\), but the model takes samples of shape \(3,\)"),
        (np.where(bad > 60, np.nan, bad), r"x has the input nan at x\["),
        (bad[0], r"x has samples of shape \(\), but"),
        (np.float32(1), r"x has samples of shape \(\), but"),
        ("text", "samples must be numbers"),
        ([[1.0, 2.0], [1.0]], "samples must form an array of numbers"),
        (pandas.DataFrame(bad, columns=["dose", "age", "ward"]), "lacks the column 'pulse'"),
    ):
        with pytest.raises(InputError, match=sentence):
            run.predict(x)
    frame = pandas.DataFrame(bad[:, [1, 0, 2]], columns=["dose", "age", "pulse"])
    assert torch.equal(run.predict(frame), run.predict(bad))


def test_the_run_s_own_test_samples_are_not_scaled_twice():
    clients = {"a": (rows(0), np.arange(40) % 2), "b": (rows(1), np.arange(40) % 2)}
    data = pl.Federation.from_arrays(clients, test=(rows(2), np.arange(40) % 2)).standardised()
    run = pl.train(pl.FedAvg(batch=8), data, model=pl.models.mlp(4), rounds=1)
    with pytest.raises(InputError, match="are scaled already; say scaled=True"):
        run.predict(data.test.x)
    assert torch.equal(run.predict(data.test.x, scaled=True), run.predict(rows(2)))


def test_a_run_without_its_data_scales_all_the_same(tmp_path: Path):
    raw = rows(9)
    for name, data, more in (
        ("standardised", federation().standardised(), {}),
        ("preprocessing", federation(), {"preprocessing": pl.Preprocessing(CENTER, SCALE, FILL, COLUMNS)}),
    ):
        study = pl.Study(pl.FedAvg(batch=8), data, model=pl.models.mlp(4), rounds=1, **more)
        trained = pl.train(study, store=tmp_path / f"{name}.db")
        loaded = load_run(tmp_path / f"{name}.db", "last")
        assert not loaded.federation.here
        assert torch.equal(loaded.predict(raw), trained.predict(raw))
        loaded.export(tmp_path / name, formats=["onnx"])
        (out,) = ReferenceEvaluator(onnx.load(tmp_path / name / "model.onnx")).run(None, {"input": raw})
        np.testing.assert_allclose(out, trained.predict(raw), rtol=1e-4, atol=1e-5)


def test_warm_starts_take_the_weights_by_their_own_names(tmp_path: Path):
    data = federation().standardised()
    say = {"model": pl.models.mlp(4), "rounds": 1}
    run = pl.train(pl.FedAvg(batch=8), data, **say)
    run.export(tmp_path / "model", formats=["safetensors"])
    for source in (run, str(tmp_path / "model" / "model.safetensors")):
        again = pl.train(pl.FedAvg(batch=8), data, init_from=source, **say)
        assert all(torch.equal(again.task.initial()[name], value) for name, value in run.state["model"].items())


def test_a_run_exports_what_its_store_would(tmp_path: Path):
    table = {"rounds": 2, "data": {"name": "iris", "clients": 3, "standardise": True}, "model": {"name": "linear"}}
    run = pl.train(study_from_dict(table | {"algorithm": {"name": "fedavg"}}), store=tmp_path / "runs.db")
    run.export(tmp_path / "one", best=True)
    export_run(tmp_path / "runs.db", "last", tmp_path / "other", best=True)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "other").iterdir())
    cards = [json.loads((tmp_path / name / "card.json").read_text()) for name in ("one", "other")]
    assert cards[0]["provenance"] == cards[1]["provenance"]
    assert cards[0]["provenance"]["study"]["algorithm"]["name"] == "fedavg"
    assert "fedavg" not in json.dumps(cards[0]["input"])

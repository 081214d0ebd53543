"""Tables end to end: from files with texts and gaps by way of `parley stats --freeze` to predictions for raw rows."""

from __future__ import annotations

import json
import re
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import parley as pl
from parley.core.errors import InputError
from parley.models import export
from parley.study.stored import load_run
from tests.data.test_encoding import federation, patients, visits

STUDY = """
rounds = 4
[data]
folder = "sites"
target = "ill"
missing = true
categories = ["pain", "stage"]
dates = ["came"]
test_fraction = 0.2
[preprocessing.table.stage]
kind = "ordinal"
levels = ["I", "II", "III"]
[preprocessing.table.age]
indicator = true
scaling = "robust"
[preprocessing.table.came]
kind = "date"
parts = ["days", "month", "weekday"]
[model]
name = "mlp"
hidden = [4]
[algorithm]
name = "fedavg"
lr = 0.1
"""


def hospitals(folder: Path) -> pd.DataFrame:
    """A file per hospital and the study beside them."""
    frame = visits(300, gaps=0.1)
    (folder / "sites").mkdir()
    for site, own in frame.groupby("site"):
        own.drop(columns="site").to_csv(folder / "sites" / f"{site}.csv", index=False)
    (folder / "study.toml").write_text(STUDY)
    return frame


def new_rows() -> pd.DataFrame:
    """Rows with an unknown text, missing cells, another order of columns and one too many."""
    frame = visits(12, gaps=0.3, seed=5)[["stage", "pain", "came", "dose", "age"]].assign(note="x")
    frame.loc[0, "pain"], frame.loc[1, "stage"] = "excruciating", "IX"
    frame.loc[2, ["pain", "stage", "age", "dose", "came"]] = None
    return frame


def by_hand(frame: pd.DataFrame, table: dict[str, pl.Column]) -> np.ndarray:
    """The inputs that the table says, with pandas alone."""
    made = []
    for name in (name for name in ("age", "dose", "came", "pain", "stage") if name in table):
        column, cells = table[name], frame[name]
        if column.kind == "date":
            days = (pd.to_datetime(cells) - pd.Timestamp("1970-01-01")).dt.days.fillna(column.fill)
            when = pd.Timestamp("1970-01-01") + pd.to_timedelta(days // 1, "D")
            made.append((days - column.center) / column.scale)
            made += [(when.dt.month == n).astype(float) for n in range(1, 13)]
            made += [(when.dt.day_of_week == n).astype(float) for n in range(7)]
        elif column.kind == "categorical":
            filled = cells.where(cells.notna(), column.fill)
            made += [(filled == level).astype(float) for level in column.levels]
            made.append((filled.notna() & ~filled.isin(column.levels)).astype(float))
        else:
            places = {level: place for place, level in enumerate(column.levels)}
            numbers = cells.map(places) if places else cells.astype(np.float32)
            made.append((numbers.astype(float).fillna(column.fill) - column.center) / column.scale)
            made += [cells.isna().astype(float)] if column.indicator else []
    return np.stack(made, axis=1).astype(np.float32)


def done(code: int, shown: str, errors: str) -> str:
    assert code == 0, errors
    return shown


def test_from_files_with_texts_and_gaps_to_predictions_for_raw_rows(tmp_path: Path, monkeypatch, parley):
    monkeypatch.chdir(tmp_path)
    hospitals(tmp_path)
    shown = done(*parley("stats", "study.toml", "--freeze", "frozen.toml", "--fill", "median", "--floor", 5))
    assert "severe" in shown
    table = tomllib.loads((tmp_path / "frozen.toml").read_text())["preprocessing"]["table"]
    assert table["pain"]["levels"] == ["mild", "none", "severe"]
    assert table["stage"]["fill"] in (0.0, 1.0, 2.0)
    done(*parley("run", "frozen.toml", "--store", "runs.db", "--quiet"))
    rows = new_rows()
    rows.to_csv("new.csv", index=False)
    done(*parley("predict", "last", "new.csv", "--store", "runs.db", "--out", "predicted.csv"))
    run = load_run("runs.db", "last")
    agreed = pl.load_study("frozen.toml").preprocessing
    assert agreed is not None
    inputs = torch.from_numpy(by_hand(rows, agreed.table))
    ours = run.predict(rows)
    torch.testing.assert_close(ours, run.network()(inputs), rtol=0, atol=1e-6)
    told = pd.read_csv("predicted.csv")
    np.testing.assert_allclose(told["p(yes)"], ours.softmax(1)[:, 1], atol=1e-5)
    torch.testing.assert_close(run.module()(torch.tensor(agreed_codes(rows, run))), ours, rtol=0, atol=0)


def agreed_codes(rows: pd.DataFrame, run: pl.Run) -> np.ndarray:
    """The raw matrix that the module takes: texts by their place among the levels, by hand."""
    scaling, columns = run.task.info.scaling, []
    for name, column in zip(scaling.columns, scaling.table, strict=True):
        cells = rows[name]
        if column.kind == "date":
            cells = (pd.to_datetime(cells) - pd.Timestamp("1970-01-01")).dt.days
        if column.texts:
            places = {level: float(place) for place, level in enumerate(column.levels)}
            cells = [np.nan if pd.isna(cell) else places.get(cell, column.code_of_unknown) for cell in cells]
        columns.append(np.asarray(cells, np.float32))
    return np.stack(columns, axis=1)


def raw_inputs(rows: pd.DataFrame, card: dict) -> np.ndarray:
    """What an exported file takes, from its card alone: columns in order, texts by their codes."""
    made = []
    for name, column in zip(card["input"]["columns"], card["input"]["preprocessing"]["table"], strict=True):
        cells = rows[name]
        if column["kind"] == "date":
            cells = (pd.to_datetime(cells) - pd.Timestamp("1970-01-01")).dt.days
        if "codes" in column:
            other = np.nan if column["code_of_other"] is None else column["code_of_other"]
            cells = [np.nan if pd.isna(cell) else column["codes"].get(cell, other) for cell in cells]
        made.append(np.asarray(cells, np.float32))
    return np.stack(made, axis=1)


def ran_elsewhere(folder: Path, raw: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs of an export's files, each in the program that others run it with."""
    runtime = pytest.importorskip("onnxruntime")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit.load` is deprecated", category=DeprecationWarning)
        script = torch.jit.load(str(folder / "model.torchscript.pt"))
    return {
        "torchscript": script(torch.from_numpy(raw)).detach().numpy(),
        "onnx": runtime.InferenceSession(folder / "model.onnx").run(None, {"input": raw})[0],
    }


BOOSTING = STUDY.partition("[model]")[0] + '[algorithm]\nname = "histogram-boosting"\n'


@pytest.mark.parametrize("study", [STUDY, BOOSTING], ids=["mlp", "histogram-boosting"])
def test_exports_take_raw_rows_with_texts_and_gaps_and_give_the_predictions(tmp_path, monkeypatch, parley, study: str):
    monkeypatch.chdir(tmp_path)
    hospitals(tmp_path)
    (tmp_path / "study.toml").write_text(study.replace("[preprocessing.table.age]", AGE))
    done(*parley("stats", "study.toml", "--freeze", "frozen.toml", "--fill", "median", "--floor", 5))
    done(*parley("run", "frozen.toml", "--store", "runs.db", "--quiet"))
    rows = new_rows()
    rows.to_csv("new.csv", index=False)
    done(*parley("predict", "last", "new.csv", "--store", "runs.db", "--out", "predicted.csv"))
    done(*parley("export", "last", "model", "--store", "runs.db"))
    card = json.loads((tmp_path / "model" / "card.json").read_text())
    wanted = pd.read_csv("predicted.csv")[["p(no)", "p(yes)"]]
    for outputs in ran_elsewhere(tmp_path / "model", raw_inputs(rows, card)).values():
        np.testing.assert_allclose(torch.from_numpy(outputs).double().softmax(1), wanted, rtol=1e-4, atol=1e-6)
    assert {file["format"]: file["checked_with"].split()[0] for file in card["files"]}["onnx"] == "ONNX"
    page = (tmp_path / "model" / "README.md").read_text()
    for line in (
        "| pain | 2 | severe |",
        "| pain | 3 | any other text |",
        "| pain | NaN | missing |",
        "| stage | NaN | missing, or any other text |",
        "| age | numeric | years |",
        "| came | date: days, month, weekday |",
    ):
        assert line in page
    assert "It is not done inside `model.safetensors`" in page


AGE = '[preprocessing.table.age]\nunit = "years"'


def test_without_onnx_runtime_the_card_says_who_checked(tmp_path: Path, monkeypatch):
    run = pl.train(pl.FedAvg(), pl.data.iris().split(pl.IID(), 3), model=pl.models.linear(), rounds=1, runtime="inline")
    there = export.find_spec
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnxruntime" else there(name))
    run.export(tmp_path / "model", formats=["onnx"])
    assert "in onnx's reference evaluator (ONNX Runtime was not" in (tmp_path / "model" / "README.md").read_text()


@pytest.mark.parametrize("runtime", ["inline", "wire"])
def test_training_is_that_on_rows_encoded_by_hand_and_goes_on_after_a_stop(tmp_path: Path, runtime: str):
    frame = patients(200)
    data = federation(frame, dtype="float32")
    agreed = pl.statistics(data, floor=1, runtime="inline").preprocessing("standard", "mean")
    settings = {"model": pl.models.mlp(4), "rounds": 4, "workers": 1, "runtime": runtime}
    ours = pl.train(pl.FedAvg(lr=0.1, steps=3), data, preprocessing=agreed, **settings)
    encoded = {
        site: (by_hand(own, agreed.table), (own.ill == "yes").to_numpy().astype(np.int64))
        for site, own in ((site, frame[frame.site == site]) for site in data.ids)
    }
    hand = pl.train(pl.FedAvg(lr=0.1, steps=3), pl.Federation.from_arrays(encoded), **settings)
    for name, value in hand.state.tensors.items():
        assert torch.equal(value, ours.state.tensors[name])
    study = pl.Study(pl.FedAvg(lr=0.1, steps=3), data, preprocessing=agreed, **settings | {"rounds": 2})
    half = pl.train(study, store=tmp_path / "runs.db")
    whole = pl.train(study, store=tmp_path / "runs.db", resume=half.id, rounds=4)
    assert all(torch.equal(value, whole.state.tensors[name]) for name, value in ours.state.tensors.items())
    absent = load_run(tmp_path / "runs.db", whole.id)  # without the data
    assert torch.equal(absent.predict(new_rows()), whole.predict(new_rows()))


def test_boosted_trees_take_encoded_rows_with_gaps():
    data = federation(patients(200), dtype="float32")
    agreed = pl.statistics(data, floor=1, runtime="inline").preprocessing("none")
    run = pl.train(pl.HistogramBoosting(), data, rounds=3, preprocessing=agreed, runtime="inline")
    assert run.predict(new_rows()).isfinite().all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: f.drop(columns="dose"), "lacks the column 'dose'"),
        (lambda f: f.assign(age="old"), "column 'age' .* holds 'old'; inputs must be numbers"),
    ],
)
def test_rows_that_do_not_fit_the_model_are_refused(change, sentence: str):
    data = federation(patients(200), dtype="float32")
    agreed = pl.statistics(data, floor=1, runtime="inline").preprocessing("standard", "mean")
    run = pl.train(pl.FedAvg(), data, model=pl.models.linear(), rounds=1, preprocessing=agreed, runtime="inline")
    with pytest.raises(InputError, match=sentence):
        run.predict(change(new_rows()))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('categories = ["pain", "stage"]', 'categories = ["pain", "ward"]', "no input column 'ward'"),
        ('dates = ["came"]', "", "column 'came' .* looks like a date: name columns of dates in dates"),
        ('kind = "date"', 'kind = "numeric"', r"\[preprocessing.table.came\] parts and since are for dates"),
        ('dates = ["came"]', 'dates = ["went"]', "no input column 'went', which dates names"),
        ('categories = ["pain", "stage"]', "", "column 'pain' .* name columns of texts in categories"),
        ("indicator = true", "indicator = 3", "preprocessing.table.age.indicator must be true or false"),
        ("indicator = true", "indicate = true", r"\[preprocessing.table.age\] has no setting 'indicate'"),
        ('levels = ["I", "II", "III"]', "", r"\[preprocessing.table.stage\] an ordinal column needs its levels"),
        ("[preprocessing.table.age]", "[preprocessing.table.weight]", "no column 'weight'"),
    ],
)
def test_a_study_that_is_wrong_about_its_columns_is_told_so(tmp_path, monkeypatch, parley, old, new, sentence):
    monkeypatch.chdir(tmp_path)
    hospitals(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY.replace(old, new))
    code, _, errors = parley("stats", "study.toml", "--freeze", "frozen.toml", "--fill", "median")
    assert code == 2
    assert re.search(sentence, " ".join(errors.split())), errors
    assert not (tmp_path / "frozen.toml").exists()


def test_a_study_that_was_not_frozen_yet_says_how(tmp_path: Path):
    hospitals(tmp_path)
    with pytest.raises(InputError, match="was not computed yet; 'parley stats STUDY --freeze FILE'"):
        pl.train(pl.load_study(tmp_path / "study.toml"))

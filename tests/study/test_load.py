"""Stored runs brought back, exported and used."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import parley as pl
from parley.core.errors import InputError
from parley.data import DataInfo
from parley.engine.run import Run
from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore
from parley.study.initial import from_run
from parley.study.predict import predict_file, predictions_text, read_inputs
from parley.study.stored import export_run, load_run
from parley.study.toml import study_from_dict
from parley.study.train import train


def study(algorithm: str = "fedavg", **data: object):
    table = {"rounds": 3, "data": {"name": "iris", "clients": 4} | data, "model": {"name": "mlp", "hidden": [5]}}
    return study_from_dict(table | {"algorithm": {"name": algorithm}})


@pytest.fixture
def store(tmp_path: Path):
    with RunStore(tmp_path / "runs.db") as store:
        yield store


@pytest.mark.parametrize("algorithm", ["fedavg", "centralised"])
def test_a_loaded_run_predicts_as_the_trained_one(store: RunStore, algorithm: str):
    trained = train(study(algorithm), store=store)
    loaded = load_run(store, "last")
    assert (loaded.id, loaded.status, loaded.best_round) == (trained.id, "finished", trained.best_round)
    assert loaded.records == trained.records
    x = trained.federation.test.x
    for best in (False, True):
        torch.testing.assert_close(loaded.predict(x, best=best), trained.predict(x, best=best), rtol=0, atol=0)


def test_runs_that_cannot_be_loaded(store: RunStore):
    bare = store.create("bare", {}, "")
    with pytest.raises(InputError, match="without a description"):
        load_run(store, bare)
    young = store.create("young", study().resolved(), "")
    with pytest.raises(InputError, match="no checkpoint yet"):
        load_run(store, young)
    store.commit(young, [RoundRecord(0, {"seconds": Metric(0.0)})])
    with pytest.raises(InputError, match="no checkpoint yet"):
        load_run(store, young)


def test_export_takes_the_model_and_its_story(store: RunStore, tmp_path: Path):
    trained = train(study(), store=store)
    files = export_run(store, "last", tmp_path / "model", formats=["safetensors"])
    assert sorted(file.name for file in files) == ["README.md", "card.json", "model.safetensors"]
    weights = load_file(tmp_path / "model" / "model.safetensors")
    for name, value in trained.module().state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=0)
    story = json.loads((tmp_path / "model" / "card.json").read_text())["provenance"]
    assert story["run"] == trained.id
    assert story["study"]["algorithm"]["name"] == "fedavg"
    assert story["results"]["central/accuracy"] == trained.last()


def table(path: Path) -> list[list[str]]:
    with path.open() as file:
        return list(csv.reader(file))


@pytest.fixture
def trained() -> Run:
    return train(study())


def test_predictions_are_the_models(trained: Run, tmp_path: Path):
    x = trained.federation.test.x
    save_file({"x": x}, tmp_path / "x.safetensors")
    np.savez(tmp_path / "x.npz", x=x.numpy())
    rows = "\n".join(",".join([*(repr(float(v)) for v in row), "?"]) for row in x)
    (tmp_path / "x.csv").write_text(f"a,b,c,d,species\n{rows}\n")
    expected = torch.softmax(trained.predict(x).double(), 1)
    names = trained.task.info.classes
    for source in ("x.safetensors", "x.npz", "x.csv"):
        assert predict_file(trained, tmp_path / source, tmp_path / "out.csv") == len(x)
        head, *lines = table(tmp_path / "out.csv")
        assert head == ["sample", "prediction", *(f"p({name})" for name in names)]
        assert [line[1] for line in lines] == [names[k] for k in expected.argmax(1)]
        np.testing.assert_allclose(
            np.array([line[2:] for line in lines], float), expected.numpy(), rtol=1e-5, atol=1e-9
        )


def test_the_target_column_is_left_out_wherever_it_is(trained: Run, tmp_path: Path):
    (tmp_path / "x.csv").write_text("a,label,b,c,d\n1,yes,2,3,4\n")
    x = read_inputs(tmp_path / "x.csv", trained.task.info, "label")
    torch.testing.assert_close(x, torch.tensor([[1.0, 2.0, 3.0, 4.0]]))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.txt", b"", "must be a .csv, .parquet, .npz or .safetensors file"),
        ("x.npz", b"PK nothing", "not a usable .npz file"),
        ("x.safetensors", b"nothing", "not a usable .safetensors file"),
        ("x.csv", b"a,b\n1,2\n", "has 2 input columns, but the model takes 4"),
        ("x.csv", b"a,b,c,d\n1,2,3\n", "line 2 of .* has 3 columns, but the header has 4"),
        ("x.csv", b"a,b,c,d\n1,2,3,x\n", "line 2, column 'd' of .* holds 'x'; inputs must be numbers"),
        ("x.csv", b"a,b,c,d\n", "has no samples to predict"),
        ("x.csv", b"", "needs a header line"),
    ],
)
def test_files_that_cannot_be_predicted(tmp_path: Path, name: str, content: bytes, sentence: str):
    (tmp_path / name).write_bytes(content)
    info = DataInfo("table", (4,), 3, "classification")
    with pytest.raises(InputError, match=sentence):
        read_inputs(tmp_path / name, info)


def test_other_mistakes(trained: Run, tmp_path: Path):
    with pytest.raises(InputError, match="there is no file"):
        read_inputs(tmp_path / "none.csv", trained.task.info)
    np.savez(tmp_path / "y.npz", y=np.zeros(3))
    with pytest.raises(InputError, match="lacks the array 'x'; it must hold 'x'\\."):
        read_inputs(tmp_path / "y.npz", trained.task.info)
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 5), np.float32))
    with pytest.raises(InputError, match=r"samples of shape \(5,\), but the model takes samples of shape \(4,\)"):
        read_inputs(tmp_path / "x.npz", trained.task.info)
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 4), np.float32))
    with pytest.raises(InputError, match="cannot be written"):
        predict_file(trained, tmp_path / "x.npz", tmp_path / "x.npz" / "out.csv")


def test_token_ids_are_whole_numbers(tmp_path: Path):
    info = DataInfo("texts", (2,), 3, "text", vocabulary=9)
    (tmp_path / "x.csv").write_text("first,second\n3,5\n8,0\n")
    x = read_inputs(tmp_path / "x.csv", info)
    assert x.dtype == torch.int64
    assert x.tolist() == [[3, 5], [8, 0]]
    (tmp_path / "x.csv").write_text("first,second\n3,5.5\n")
    with pytest.raises(InputError, match="must hold whole numbers, the token ids"):
        read_inputs(tmp_path / "x.csv", info)


def test_values_of_a_regression():
    info = DataInfo("table", (4,), 1, "regression")
    assert predictions_text(torch.tensor([[1.5], [2.5]]), info) == "sample,value\n0,1.5\n1,2.5\n"
    two = DataInfo("table", (4,), 2, "regression")
    assert predictions_text(torch.tensor([[1.5, 2.0]]), two) == "sample,value 0,value 1\n0,1.5,2.0\n"
    text = DataInfo("text", (4,), 3, "text")
    with pytest.raises(InputError, match="sequence"):
        predictions_text(torch.zeros(2, 3, 4), text)


def python_study(dtype: str | None = "float32", **changes: object) -> pl.Study:
    random = np.random.default_rng(0)
    clients = {f"site {i}": (random.normal(size=(8, 4)), random.integers(3, size=8)) for i in range(3)}
    say = {"model": pl.models.mlp(5), "rounds": 2, "faults": pl.Faults(dropout=0.4, quorum=0.0)}
    return pl.Study(pl.FedAvg(), pl.Federation.from_arrays(clients, dtype=dtype), **(say | changes))


@pytest.mark.parametrize("dtype", ["float32", None])
def test_a_run_from_python_predicts_without_its_data(store: RunStore, tmp_path: Path, dtype: str | None):
    study = python_study(dtype)
    trained = pl.train(study, store=store)
    loaded = load_run(store, "last")
    x = torch.ones(3, 4)
    assert torch.equal(loaded.predict(x), trained.predict(x))
    assert torch.equal(loaded.predict(x, client="site 1"), trained.predict(x, client="site 1"))
    with pytest.raises(InputError, match="there is no client 'site 9'"):
        loaded.predict(x, client="site 9")
    with pytest.raises(InputError, match="were given in Python"):
        loaded.federation.client("site 1")
    export_run(store, "last", tmp_path / "model", formats=["safetensors"])
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert load_run(tmp_path / "runs.db", "last", study).federation.client("site 1").x.shape == (8, 4)


def test_what_only_python_can_make_is_named(store: RunStore):
    net = torch.nn.Linear(4, 3)
    study = python_study(model=net)
    trained = pl.train(study, store=store)
    with pytest.raises(InputError, match="a part that only Python can make, model = Linear; load it in Python with"):
        load_run(store, "last")
    x = torch.ones(3, 4)
    assert torch.equal(load_run(store, "last", study).predict(x), trained.predict(x))
    with pytest.raises(InputError, match="was started with another object as model"):
        load_run(store, "last", python_study(model=torch.nn.Linear(4, 3)))


def test_a_card_names_who_was_missing_and_no_place_on_this_machine(store: RunStore, tmp_path: Path):
    folder = tmp_path / "clients"
    folder.mkdir()
    for i in range(4):
        rows = "\n".join(f"{row},{row + i},{row % 2}" for row in range(10))
        (folder / f"site{i}.csv").write_text(f"a,b,label\n{rows}\n")
    (tmp_path / "study.toml").write_text(
        'rounds = 4\n[data]\nfolder = "clients"\n[model]\nname = "linear"\n[algorithm]\nname = "local-only"\n'
        "[faults]\ndropout = 0.4\nquorum = 0.0\n"
    )
    trained = pl.train(pl.load_study(tmp_path / "study.toml"), store=store)
    client = next(trained.clients_with_memory())
    export_run(store, "last", tmp_path / "model", client=client, formats=["safetensors"])
    text = (tmp_path / "model" / "card.json").read_text()
    assert str(tmp_path) not in text
    story = json.loads(text)["provenance"]
    assert story["model"] == f"that of client {client}"
    assert story["study"]["data"]["folder"] == "clients"
    missing = {one.client for one in trained.failures()}
    assert missing
    assert set(story["left_out"]) == missing
    assert all(entry["reason"] == "dropped out (simulated)." for entry in story["left_out"].values())
    assert sum(len(entry["rounds"]) for entry in story["left_out"].values()) == len(trained.failures())
    weights = load_file(tmp_path / "model" / "model.safetensors")
    for name, value in trained.personal(client).state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=0)
    with pytest.raises(InputError, match="last round only"):
        export_run(store, "last", tmp_path / "other", client=client, best=True)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_run_that_goes_on_while_it_is_loaded(store: RunStore, tmp_path: Path, monkeypatch, algorithm: str):
    """Its checkpoint's files may be gone before they are read: the next one is taken, and nothing of later rounds."""
    told = replace(study(algorithm), checkpoint=0.0, runtime="inline")
    run = train(replace(told, rounds=1), store=store)
    look, done = RunStore.checkpoint, [1]

    def checkpoint(self, name):
        seen = look(self, name)
        if self is not store and done[0] < 9:  # three rounds later
            done[0] += 3
            train(replace(told, rounds=done[0]), store=store, resume=run.id)
        return seen

    monkeypatch.setattr(RunStore, "checkpoint", checkpoint)
    loaded = load_run(tmp_path / "runs.db", run.id)
    weights = from_run(RunStore(tmp_path / "runs.db", create=False), run.id, False, loaded.task).weights
    monkeypatch.undo()
    newest = load_run(tmp_path / "runs.db", run.id)
    assert loaded.records == newest.records[: len(loaded.records)]
    assert loaded.records[-1].number == 10
    same = loaded.network().state_dict()
    assert all(torch.equal(same[name], value) for name, value in newest.network().state_dict().items())
    assert all(torch.equal(same[name], value) for name, value in weights.items())


def test_a_damaged_checkpoint_of_a_run_that_rests_is_still_refused(store: RunStore):
    run = train(study(), store=store)
    next(store.folder(run.id).glob("state-*.safetensors")).unlink()
    with pytest.raises(InputError, match="is missing; the run cannot be resumed or exported"):
        load_run(store, run.id)

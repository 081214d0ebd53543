"""[data] with the user's own files: precision, standardisation, images, and predictions from raw files."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from parley.core.errors import InputError
from parley.data import DataInfo, Federation
from parley.store.runs import RunStore
from parley.study.predict import predict_file, predictions_text, read_inputs
from parley.study.stored import load_run
from parley.study.toml import load_study, study_from_dict
from parley.study.train import train

STUDY = """
rounds = 3
[data]
folder = "sites"
target = "ill"
standardise = true
test_fraction = 0.25
[model]
name = "linear"
[algorithm]
name = "fedavg"
lr = 0.5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "sites").mkdir()
    for number, site in enumerate(("north", "south")):
        rows = []
        for _ in range(30):
            age, dose = rng.normal(50, 10), rng.normal(0.01, 0.002)
            rows.append(
                f"{age},{dose},{'yes' if age > 50 else 'no'}"
                if number == 0
                else f"{dose},{'yes' if age > 50 else 'no'},{age}"
            )
        header = "age,dose,ill" if number == 0 else "dose,ill,age"
        (tmp_path / f"sites/{site}.csv").write_text("\n".join([header, *rows]) + "\n")
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path / "study.toml"


def test_standardised_studies_predict_from_raw_files(file, tmp_path):
    study = load_study(file)
    with RunStore(tmp_path / "store") as store:
        train(study, store=store)
        run = load_run(store, "last")
    federation, scaling = study.federation(), study.federation().info.scaling
    assert run.task.info.scaling == scaling
    assert scaling.mean[0] == pytest.approx(50, abs=5)
    # Other columns, another order: found by name; raw values: standardised like the training data.
    (tmp_path / "new.csv").write_text("name,dose,age\nann,0.012,70\nbob,0.008,30\n")
    assert predict_file(run, tmp_path / "new.csv", tmp_path / "out.csv") == 2
    raw = torch.tensor([[70, 0.012], [30, 0.008]])
    outputs = run.predict(scaling.apply(raw), scaled=True)
    with (tmp_path / "out.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["prediction"] for row in rows] == ["yes", "no"]
    shares = torch.softmax(outputs.double(), 1)
    assert [float(row["p(yes)"]) for row in rows] == pytest.approx(shares[:, 1].tolist(), abs=1e-5)
    assert federation.client_test("north").x.abs().max() < 6


def test_settings_survive_a_stored_configuration(file):
    study = load_study(file, ["data.dtype=float64"])
    again = study_from_dict(study.resolved(), "/")
    assert again.federation().fingerprint() == study.federation().fingerprint()
    assert study.federation().client("north").x.dtype == torch.float64
    assert load_study(file, ["data.standardise=false"]).federation().info.scaling is None
    assert load_study(file).fingerprint() != load_study(file, ["data.standardise=false"]).fingerprint()
    with pytest.raises(InputError, match=r"^\[data\] line 2, column 'ill' of .* holds '(yes|no)'"):
        load_study(file, ["data.kind=regression"]).federation()
    for setting, match in (("data.kind=text", "data.kind must be"), ("data.dtype=float16", "data.dtype must be")):
        with pytest.raises(InputError, match=match):
            load_study(file, [setting])


def test_registered_sets_can_be_standardised_too():
    table = {
        "data": {"name": "iris", "clients": 3, "standardise": True},
        "model": {"name": "linear"},
        "algorithm": {"name": "fedavg"},
    }
    federation = study_from_dict(table).federation()
    pooled = torch.cat([federation.client(id).x for id in federation.ids])
    torch.testing.assert_close(pooled.std(0, correction=0), torch.ones(4), atol=1e-5, rtol=0)


def test_a_folder_of_images_by_client_and_class(file, tmp_path):
    image = pytest.importorskip("PIL.Image")
    for client in ("north", "south"):
        for kind, shade in (("dark", 10), ("light", 240)):
            (tmp_path / "scans" / client / kind).mkdir(parents=True)
            for number in range(4):
                image.new("L", (3, 2), shade + number).save(tmp_path / "scans" / client / kind / f"{number}.png")
    file.write_text(STUDY.replace("sites", "scans").replace('target = "ill"\n', ""))
    study = load_study(file)
    assert study.federation().info.classes == ("dark", "light")
    run = train(study)
    assert run.records


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    for client, size in (("north", (3, 2)), ("south", (5, 4))):
        for kind, shade in (("dark", 10), ("light", 240)):
            (tmp_path / "scans" / client / kind).mkdir(parents=True)
            for number in range(4):
                image.new("L", size, shade + number).save(tmp_path / "scans" / client / kind / f"{number}.png")
    file = tmp_path / "images.toml"
    file.write_text(STUDY.replace("sites", "scans").replace('target = "ill"\n', ""))
    return file


@pytest.mark.parametrize(("size", "value"), [("[2, 3]", (2, 3)), ("4", 4)])
def test_images_of_a_folder_take_what_the_function_takes(scans, size, value):
    study = load_study(scans, ["data.grey=true", f"data.size={size}", "data.standardise=false"])
    same = Federation.from_image_folders(scans.parent / "scans", grey=True, size=value, test_fraction=0.25)
    assert study.federation().info.shape == same.info.shape == (1, *(value if isinstance(value, tuple) else (4, 4)))
    assert study.federation().fingerprint() == same.fingerprint()
    again = study_from_dict(study.resolved())
    assert again.federation().fingerprint() == same.fingerprint()
    assert again.fingerprint() == study.fingerprint()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("size=0", "data.size must be "),
        ("size=[2]", "data.size must be "),
        ("size=true", "data.size must be "),
        ("grey=1", "data.grey must be "),
        ('target="ill"', "[data] target is a setting of tables and arrays, but 'scans' holds images."),
        ("missing=true", "[data] missing is a setting of tables and arrays, but 'scans' holds images."),
    ],
)
def test_settings_of_images_are_checked(scans, override, sentence):
    with pytest.raises(InputError) as caught:
        load_study(scans, [f"data.{override}"]).federation()
    assert sentence in str(caught.value)


def test_settings_of_images_are_not_for_tables(file):
    with pytest.raises(InputError, match=r"\[data\] grey is a setting of images, but 'sites' holds none\."):
        load_study(file, ["data.grey=true"]).federation()


def test_new_tables_are_matched_by_name(tmp_path):
    info = DataInfo("t", (2,), 2, "classification", columns=("u", "v"))
    (tmp_path / "x.csv").write_text("id,v,u,y\nann,2,1,yes\n")
    assert read_inputs(tmp_path / "x.csv", info).tolist() == [[1, 2]]
    for text, match in (
        ("u,w\n1,2\n", "lacks the column 'v'; its columns are u, w"),
        ("u,v,v\n1,2,3\n", "two columns 'v'"),
        ("u,v\n1,nan\n", "line 2, column 'v' .* holds 'nan'"),
        ("u,v\n1,\n", "line 2, column 'v' .* is empty"),
    ):
        (tmp_path / "x.csv").write_text(text)
        with pytest.raises(InputError, match=match):
            read_inputs(tmp_path / "x.csv", info)
    np.savez(tmp_path / "x.npz", x=np.array([[1.0, np.inf]]))
    with pytest.raises(InputError, match=r"has the input inf at x\[0, 1\]"):
        read_inputs(tmp_path / "x.npz", info)


def test_names_of_classes_cannot_steer_a_terminal():
    info = DataInfo("t", (1,), 2, "classification", ("a\x1b[2J", "b\n"))
    text = predictions_text(torch.tensor([[1.0, 0.0]]), info)
    assert text == "sample,prediction,p(a\\x1b[2J),p(b\\n)\n0,a\\x1b[2J,0.731059,0.268941\n"


def test_integer_arrays_of_a_folder_are_tokens_unless_a_precision_is_given(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "counts").mkdir()
    for client in "ab":
        np.savez(tmp_path / f"counts/{client}.npz", x=rng.integers(0, 9, (20, 4)), y=rng.integers(0, 3, 20))
    file = tmp_path / "study.toml"
    file.write_text(
        'rounds = 1\n[data]\nfolder = "counts"\n[model]\nname = "linear"\n[algorithm]\nname = "fedavg"\nlr = 0.01\n'
    )
    with pytest.raises(InputError, match=r"the model \w+ takes floats; .*dtype = \"float32\" in \[data\]"):
        train(load_study(file))
    assert train(load_study(file, ["data.dtype=float32"])).status == "finished"


def test_one_file_with_a_column_of_clients(tmp_path):
    rows = [f"{n % 7},{n % 5},{'abc'[n % 3]},{'yes' if n % 7 > 3 else 'no'}" for n in range(60)]
    (tmp_path / "patients.csv").write_text("\n".join(["age,dose,site,ill", *rows]) + "\n")
    file = tmp_path / "study.toml"
    own = 'file = "patients.csv"\nclient = "site"\ntarget = "ill"'
    file.write_text(STUDY.replace('folder = "sites"\ntarget = "ill"', own))
    study = load_study(file)
    assert study.title == "fedavg-patients"
    assert tuple(study.federation().ids) == ("a", "b", "c")
    again = study_from_dict(study.resolved(), "/")
    assert again.federation().fingerprint() == study.federation().fingerprint()
    with RunStore(tmp_path / "store") as store:
        train(study, store=store)
        assert predict_file(load_run(store, "last"), tmp_path / "patients.csv", tmp_path / "out.csv") == 60
    assert load_study(file, ["data.dtype=float64"]).federation().form.dtype == torch.float64
    for changed, match in (
        (own.replace('client = "site"\n', ""), "data.client is missing: .*needs the columns client and target"),
        (own + '\nfolder = "sites"', "needs one of name, .* folder, .* and file"),
        (own + "\nclients = 3", r"\[data\] with a file has no setting 'clients': did you mean 'client'"),
        (
            own.replace('"site"', '"clinic"'),
            r"^\[data\] .*patients.csv' has no column 'clinic'",
        ),
    ):
        file.write_text(STUDY.replace('folder = "sites"\ntarget = "ill"', changed))
        with pytest.raises(InputError, match=match):
            load_study(file).federation()

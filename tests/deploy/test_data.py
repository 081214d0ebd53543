"""Nodes' data: read from files, folders and functions, agreed on by description, and fitted to what was agreed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from parley.core.errors import InputError, WireError
from parley.data import ClientData, DataInfo
from parley.deploy.answering import answer, invitation
from parley.deploy.enrolment import federation_of
from parley.deploy.node_data import agreed, check_described, described, fitted, load_data
from parley.deploy.settings import NodeSettings
from parley.runtimes.frame import unpack

from .conftest import ALL, proposed


def settings(path: object, **more: object) -> NodeSettings:
    return NodeSettings("a", data=str(path), **({"test_fraction": 0.0} | more))  # type: ignore[arg-type]


def test_tables_with_named_classes_agree_on_one_numbering(tmp_path: Path):
    (tmp_path / "a.csv").write_text("age,dose,label\n1,2,sick\n3,4,well\n")
    (tmp_path / "b.csv").write_text("dose,age,label\n6,5,dead\n8,7,well\n")
    own = {name: load_data(settings(tmp_path / f"{name}.csv"), tmp_path) for name in "ab"}
    said = {name: check_described(described(data)) for name, data in own.items()}
    info, form = agreed(said)
    assert info.classes == ("dead", "sick", "well")
    assert info.columns == ("age", "dose")
    assert form.dtype == torch.float32
    b = fitted(own["b"].train, own["b"].info, info)
    assert b.x.tolist() == [[5, 6], [7, 8]]
    assert b.y.tolist() == [0, 2]
    federation = federation_of(said)
    assert federation.ids == ("a", "b")
    assert federation.sizes().tolist() == [2, 2]
    with pytest.raises(InputError, match="stay there"):
        federation.client("a")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("age,dose,label\n1,2,3.5\n", "has kind = regression"),
        ("age,label\n1,2\n", "has shape"),
        ("age,weight,label\n1,2,sick\n", "do not have the same columns: dose, weight"),
        ("age,dose,label\n1,2,1\n", "one has named classes and the other numbers"),
    ],
)
def test_nodes_that_do_not_fit_together_are_named(tmp_path: Path, other: str, why: str):
    (tmp_path / "a.csv").write_text("age,dose,label\n1,2,sick\n3,4,well\n")
    (tmp_path / "b.csv").write_text(other)
    said = {name: described(load_data(settings(tmp_path / f"{name}.csv"), tmp_path)) for name in "ab"}
    with pytest.raises(InputError, match=why):
        agreed(said)


def test_held_out_samples_are_a_split_by_the_nodes_name_or_a_file_of_their_own(tmp_path: Path):
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20) % 3
    np.savez(tmp_path / "x.npz", x=x, y=y)
    own = load_data(settings("x.npz", test_fraction=0.25), tmp_path)
    assert (len(own.train), len(own.test)) == (15, 5)
    again = load_data(settings("x.npz", test_fraction=0.25), tmp_path)
    assert own.fingerprint() == again.fingerprint()
    rows = {tuple(row) for row in torch.cat([own.train.x, own.test.x]).tolist()}
    assert rows == {tuple(row) for row in x.tolist()}
    np.savez(tmp_path / "t.npz", x=x[:4], y=y[:4])
    both = load_data(settings("x.npz", test="t.npz"), tmp_path)
    assert (len(both.train), len(both.test)) == (20, 4)


def test_a_function_gives_a_frame_or_arrays(tmp_path: Path):
    code = "import numpy as np\n\n\ndef frame():\n    return {'age': [1, 2, 3], 'label': ['x', 'y', 'x']}\n"
    code += "\n\ndef arrays():\n    return np.ones((4, 2)), np.array([0, 1, 2, 1])\n"
    (tmp_path / "mine.py").write_text(code)
    frame = load_data(settings("mine.py:frame", target="label"), tmp_path)
    assert frame.info.classes == ("x", "y")
    assert frame.train.x.tolist() == [[1], [2], [3]]
    arrays = load_data(settings("mine.py:arrays"), tmp_path)
    assert (arrays.info.outputs, len(arrays.train)) == (3, 4)
    with pytest.raises(InputError, match="say which column to predict"):
        load_data(settings("mine.py:frame"), tmp_path)


def test_a_folder_of_images_by_class(tmp_path: Path):
    image = pytest.importorskip("PIL.Image")
    for label in ("cat", "dog"):
        (tmp_path / "scans" / label).mkdir(parents=True)
        image.new("RGB", (4, 5), 100).save(tmp_path / "scans" / label / "1.png")
    own = load_data(settings("scans"), tmp_path)
    assert own.info.classes == ("cat", "dog")
    assert own.train.x.shape == (2, 3, 5, 4)


@pytest.mark.parametrize(("place", "why"), [("none.csv", "there are no data"), ("x.txt", "neither a folder")])
def test_data_that_are_not_there_are_a_sentence(tmp_path: Path, place: str, why: str):
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(InputError, match=why):
        load_data(settings(place), tmp_path)


def test_what_the_server_says_was_agreed_must_fit_what_the_node_has():
    data, own = (
        ClientData(torch.zeros(2, 3), torch.tensor([0, 1])),
        DataInfo("node", (3,), 2, "classification", ("x", "y")),
    )
    for wrong in (
        DataInfo("n", (4,), 2, "classification", ("x", "y")),
        DataInfo("n", (3,), 2, "classification", ("x", "z")),
        DataInfo("n", (3,), 2, "regression"),
    ):
        with pytest.raises(WireError):
            fitted(data, own, wrong)
    with pytest.raises(WireError, match="agreed on 1 classes"):
        fitted(data, DataInfo("n", (3,), 2, "classification"), DataInfo("n", (3,), 1, "classification"))


WRONG = (
    {"samples": 0},
    {"samples": "3"},
    {"shape": [1.5]},
    {"dtype": "int8"},
    {"kind": "x"},
    {"classes": [1]},
    {"classes": ["\ud800"]},
    {"fingerprint": 3},
)


@pytest.mark.parametrize("change", WRONG)
def test_descriptions_that_are_none_are_refused(tmp_path: Path, change):
    np.savez(tmp_path / "x.npz", x=np.ones((3, 2), np.float32), y=np.arange(3))
    said = described(load_data(settings("x.npz"), tmp_path))
    with pytest.raises(WireError):
        check_described(said | change)


def test_rows_that_cannot_be_read_are_listed_at_the_node_and_not_told(make_node, tmp_path: Path):
    rows = [f"{n},{'yes' if n % 2 else 'no'}" for n in range(20)]
    (tmp_path / "own.csv").write_text("\n".join(["age,ill", *rows, "secret,no"]))
    node = make_node("a", ALL)
    node.set(data=str(tmp_path / "own.csv"), target="ill", on_error="skip", test_fraction=0.0)
    own = load_data(node.settings, node.path)
    assert len(own.train) == 20
    assert "secret" not in json.dumps(described(own))
    reply = answer(node, invitation("a", "run", proposed()))
    assert b"secret" not in reply
    assert unpack(reply)[0]["data"]["samples"] == 20
    assert "line 22, column 'age'" in (node.path / "skipped.txt").read_text()
    assert "secret" in (node.path / "skipped.txt").read_text()
    (said,) = [line for line in node.logged() if line["event"] == "skipped"]
    assert (said["run"], said["rows"]) == ("run", 1)

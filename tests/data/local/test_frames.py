"""One frame with a column of clients."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace

import numpy as np
import pytest
import torch

from parley.core.errors import InputError
from parley.data import DataInfo, Federation

COLUMNS = {
    "age": [31, 45, 28, 60, 52],
    "hospital": ["north", "south", "north", "west", "south"],
    "dose": [0.5, 1.5, 2.5, 3.5, 4.5],
    "ill": ["no", "yes", "no", "yes", "no"],
}


def as_frame(library: str, columns: dict):
    if library == "dictionary":
        return columns
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    module = importlib.import_module(library)
    return module.table(columns) if library == "pyarrow" else module.DataFrame(columns)


@pytest.mark.parametrize("library", ["dictionary", "pandas", "polars", "pyarrow"])
def test_every_library_gives_the_same_federation(library):
    federation = Federation.from_frame(as_frame(library, COLUMNS), client="hospital", target="ill")
    assert federation.info == DataInfo("frame", (2,), 2, "classification", ("no", "yes"), columns=("age", "dose"))
    assert tuple(federation.ids) == ("north", "south", "west")
    assert federation.client("south").x.tolist() == [[45, 1.5], [52, 4.5]]
    assert federation.client("south").y.tolist() == [1, 0]
    assert federation.client("south").x.dtype == torch.float32
    numbers = {key: COLUMNS[key] for key in ("age", "hospital", "dose")}
    targets = Federation.from_frame(as_frame(library, numbers), client="hospital", target="dose", dtype="float64")
    assert (targets.info.kind, targets.client("west").y.tolist()) == ("regression", [3.5])
    assert targets.client("west").x.dtype == torch.float64
    ages = Federation.from_frame(as_frame(library, numbers), client="hospital", target="age", kind="regression")
    assert ages.client("west").y.tolist() == [60.0]


def test_the_clients_partition_the_rows():
    rng = np.random.default_rng(0)
    frame = {"site": rng.integers(0, 7, 200), "row": np.arange(200.0), "y": rng.integers(0, 3, 200)}
    federation = Federation.from_frame(frame, client="site", target="y", test_fraction=0.25)
    seen = []
    for id in federation.ids:
        for part in (federation.client(id), federation.client_test(id)):
            rows = part.x[:, 0].long().numpy()
            assert (frame["site"][rows] == int(id)).all()
            assert (frame["y"][rows] == part.y.numpy()).all()
            seen += rows.tolist()
    assert sorted(seen) == list(range(200))
    assert list(federation.ids) == list(dict.fromkeys(map(str, frame["site"])))


def test_a_test_frame_is_matched_by_name_and_its_classes_count():
    test = {"dose": [9.0], "age": [1], "ill": ["maybe"]}
    federation = Federation.from_frame(COLUMNS, client="hospital", target="ill", test=test)
    assert federation.test.x.tolist() == [[1, 9]]
    assert federation.info.classes == ("maybe", "no", "yes")
    with pytest.raises(InputError, match="the test frame lacks the column 'age'"):
        Federation.from_frame(COLUMNS, client="hospital", target="ill", test={"dose": [9.0], "ill": ["no"]})


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"age": [1, 2, None, 4, 5]}, "row 2, column 'age' of the frame is empty"),
        ({"age": [1.0, 2.0, np.nan, 4.0, 5.0]}, "row 2, column 'age' of the frame holds 'nan'"),
        ({"age": ["1", "2", "old", "4", "5"]}, "row 0, column 'age' of the frame holds '1'; inputs must be numbers"),
        ({"age": np.array(["2020-01-01"] * 5, "M8[D]")}, "row 0, column 'age' .* looks like a date: name"),
        ({"age": [1, 2]}, "differ in length"),
        ({"age": [[1], [2]]}, "one value per row"),
        ({"hospital": ["a", None, "b", "c", "d"]}, "row 1, column 'hospital' .* holds 'None', which is no client"),
        ({"hospital": ["a", " ", "b", "c", "d"]}, "which is no client"),
        ({"ill": ["no", None, "no", "yes", "no"]}, "row 1, column 'ill' of the frame holds 'None', which is no target"),
        ({"ill": ["no", 1, "no", "yes", "no"]}, "row 0, column 'ill' .* holds 'no', but row 1, column 'ill'"),
        ({"ill": [0, 1, -1, 0, 0]}, "holds '-1', which is no class number"),
    ],
)  # fmt: skip
def test_bad_cells_are_named(changed, match):
    with pytest.raises(InputError, match=match):
        Federation.from_frame(COLUMNS | changed, client="hospital", target="ill")


def test_other_mistakes():
    with pytest.raises(InputError, match="no column 'clinic'; its columns are age, hospital, dose, ill"):
        Federation.from_frame(COLUMNS, client="clinic", target="ill")
    with pytest.raises(InputError, match="no column 'sick'"):
        Federation.from_frame(COLUMNS, client="hospital", target="sick")
    with pytest.raises(InputError, match="both the client and the target"):
        Federation.from_frame(COLUMNS, client="ill", target="ill")
    with pytest.raises(InputError, match="no rows"):
        Federation.from_frame({key: [] for key in COLUMNS}, client="hospital", target="ill")
    with pytest.raises(InputError, match="a data frame or a dictionary of columns is needed, not int"):
        Federation.from_frame(3, client="hospital", target="ill")


def as_file(path, columns: dict):
    """The frame as a .csv file, or with pyarrow as a .parquet file."""
    if path.suffix == ".csv":
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        path.write_text("\n".join(lines) + "\n")
    else:
        pytest.importorskip("pyarrow.parquet").write_table(as_frame("pyarrow", columns), path)
    return path


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_file_gives_what_its_frame_does(tmp_path, ending):
    file = as_file(tmp_path / f"patients{ending}", COLUMNS)
    frame = Federation.from_frame(COLUMNS, client="hospital", target="ill")
    for path in (file, str(file)):
        federation = Federation.from_frame(path, client="hospital", target="ill")
        assert federation.info == replace(frame.info, name="patients")
        assert federation.ids == frame.ids
        for id in frame.ids:
            assert torch.equal(federation.client(id).x, frame.client(id).x)
            assert torch.equal(federation.client(id).y, frame.client(id).y)
    tested = Federation.from_frame(file, client="hospital", target="ill", test=file)
    assert len(tested.test) == 5


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("age,hospital,ill\n1,a,no\nold,b,yes\n", "line 3, column 'age' .* holds 'old'.*name columns of texts"),
        ("age,hospital,ill\n1,a,no\n2, ,yes\n", "line 3, column 'hospital' of .*holds ' ', which is no client"),
        ("age,hospital,ill\n1,a,no\n,b,yes\n", r"line 3, column 'age' .* is empty; .*parley stats.*preprocessing\("),
        ("age,clinic,ill\n1,a,no\n", "has no column 'hospital'; its columns are age, clinic, ill"),
        ("age,hospital,sick\n1,a,no\n", "has no column 'ill'"),
        ("age,hospital,ill\n", "p.csv' has no rows"),
        ("age;hospital;ill\n1;a;no\n", "separated by ';'"),
    ],
)  # fmt: skip
def test_bad_files_are_told_by_line(tmp_path, text, match):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(InputError, match=match):
        Federation.from_frame(tmp_path / "p.csv", client="hospital", target="ill")


def test_no_table_at_a_path(tmp_path):
    with pytest.raises(InputError, match=r"there is no file '.*p\.csv'"):
        Federation.from_frame(tmp_path / "p.csv", client="hospital", target="ill")
    with pytest.raises(InputError, match=r"must be a \.csv or \.parquet file"):
        Federation.from_frame(tmp_path / "p.xlsx", client="hospital", target="ill")


def test_a_column_of_clients_as_long_as_the_others():
    with pytest.raises(InputError, match="the columns of the frame differ in length"):
        Federation.from_frame(COLUMNS | {"hospital": ["a", "b"]}, client="hospital", target="ill")

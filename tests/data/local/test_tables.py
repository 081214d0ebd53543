"""Tables by client: columns go by name, and what cannot be used is named by file, line and column."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from parley.core.errors import InputError, ParleyWarning
from parley.data import DataInfo, Federation

needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def test_columns_are_matched_by_name(tmp_path):
    write(tmp_path, a="u,v,y\n1,2,0\n3,4,1\n", b="v,y,u\n20,1,10\n", c=' y ,"v",u\n0,200,100\n')
    federation = Federation.from_folder(tmp_path, target="y")
    assert federation.info == DataInfo(tmp_path.name, (2,), 2, "classification", columns=("u", "v"))
    assert federation.client("b").x.tolist() == [[10, 20]]
    assert federation.client("c").x.tolist() == [[100, 200]]
    assert federation.client("b").y.tolist() == [1]


@pytest.mark.parametrize(
    ("b", "match"),
    [
        ("u,y\n1,0\n", r"b\.csv' lacks the column 'v' that the others have"),
        ("u,v,w,y\n1,2,3,0\n", r"b\.csv' has a column 'w' that the others do not have"),
        ("u,w,y\n1,2,0\n", r"b\.csv' lacks the column 'v'"),
        ("u,u,y\n1,2,0\n", r"b\.csv' has two columns 'u'"),
        ("u,u ,y\n1,2,0\n", r"b\.csv' has two columns 'u'"),
        (",u,v,y\n0,1,2,0\n", r"column 1 of '.*b\.csv' has no name \(an index"),
        ("u,v\x1b[2J,y\n1,2,0\n", "control characters"),
        ("u,y,v\n1,0,2\n", r"b\.csv' ends with the column 'v', but the tables before it with 'y'; name the target"),
        ("1,2,0\n3,4,1\n", r"'.*b\.csv' needs a header line .* the first line holds only numbers"),
        ("u;v;y\n1;2;0\n", r"the columns of '.*b\.csv' are separated by ';'; separate them by commas"),
        ("u,v,y\n1,,0\n", r"line 2, column 'v' of '.*b\.csv' is empty; .*missing = true"),
        ("u,v,y\n1,nan,0\n", r"line 2, column 'v' of '.*b\.csv' holds 'nan', .*missing = true"),
        ("u,v,y\n1,2\n", r"line 2 of '.*b\.csv' has 2 columns, but the header has 3"),
        ("u,v,y\n\n1,2,0\n1,,0\n", r"line 4, column 'v' of '.*b\.csv' is empty"),
        ("u,v,y\n1,old,0\n", r"line 2, column 'v' of '.*b\.csv' holds 'old'; inputs must be numbers"),
        ("u,v,y\n1,2,0\n1,nan,0\n", r"line 3, column 'v' of '.*b\.csv' holds 'nan', which is no finite number"),
        ("u,v,y\n1,-inf,0\n", r"line 2, column 'v' of '.*b\.csv' holds '-inf'"),
        ("u,v,y\n1,1e300,0\n", r"line 2, column 'v' .* holds '1e\+300', which is too large for float32"),
        ("u,v,y\n1,2,\n", r"line 2, column 'y' of '.*b\.csv' holds '', which is no target"),
        ("u,v,y\n1,2,nan\n", r"line 2, column 'y' of '.*b\.csv' holds 'nan', which is no target"),
        ("u,v,y\n1,2,-1\n", r"line 2, column 'y' of '.*b\.csv' holds '-1', which is no class number"),
        ("u,v,y\n1,2,1000000000\n", "holds '1000000000', which is no class number"),
        ("u,v,y\n1,2,yes\n", r"line 2, column 'y' of '.*b\.csv' holds 'yes', but line 2, .* of '.*a\.csv' holds '0'"),
        ('u,v,y\n1,2,"0\n1,2,0\n', r"b\.csv' is not a usable \.csv file \(unexpected end of data\)"),
        (f"u,v,y\n1,{'2' * 140_000},0\n", "field larger than field limit"),
        ("u,v,y\n1,2,0\0\n", r"holds '0\\x00'"),
        ('"u\nv",v,y\n1,2,0\n', "control characters"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(tmp_path, b, match):
    write(tmp_path, a="u,v,y\n1,2,0\n3,4,1\n", b=b)
    with pytest.raises(InputError, match=match) as caught:
        Federation.from_folder(tmp_path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


def test_all_files_decide_between_classes_and_numbers(tmp_path):
    write(tmp_path, a="u,y\n1,0\n2,1\n", b="u,y\n1,2.5\n")
    federation = Federation.from_folder(tmp_path)
    assert federation.info.kind == "regression"
    assert federation.client("a").y.dtype == torch.float32
    assert federation.client("a").y.tolist() == [0, 1]
    write(tmp_path, b="u,y\n1,1e30\n")
    assert Federation.from_folder(tmp_path).info.kind == "regression"
    write(tmp_path, b="u,y\n1,3\n")
    assert Federation.from_folder(tmp_path).info.outputs == 4
    numbers = Federation.from_folder(tmp_path, kind="regression")
    assert (numbers.info.kind, numbers.client("b").y.tolist()) == ("regression", [3.0])
    write(tmp_path, a="u,y\n1,-1\n2,1\n")
    assert Federation.from_folder(tmp_path, kind="regression").client("a").y.tolist() == [-1, 1]


def test_kind_can_be_forced(tmp_path):
    write(tmp_path, a="u,y\n1,1\n2,3+\n", b="u,y\n1,2\n")
    federation = Federation.from_folder(tmp_path, kind="classification")
    assert federation.info.classes == ("1", "2", "3+")
    assert federation.client("b").y.tolist() == [1]
    with pytest.raises(InputError, match="targets must be numbers throughout"):
        Federation.from_folder(tmp_path, kind="regression")
    write(tmp_path, a="u,y\n1,1.0\n2,0.0\n", b="u,y\n1,2\n")
    assert Federation.from_folder(tmp_path, kind="classification").info.outputs == 3
    write(tmp_path, a="u,y\n1,1.5\n")
    with pytest.raises(InputError, match=r"holds '1\.5', which is no class number"):
        Federation.from_folder(tmp_path, kind="classification")


def test_names_of_classes_are_harmless(tmp_path):
    write(tmp_path, a="u,y\n1, yes\n2,no \n", b='u,y\n1,"yes"\n')
    assert Federation.from_folder(tmp_path).info.classes == ("no", "yes")
    write(tmp_path, b="u,y\n1,\x1b[31mred\n")
    with pytest.raises(InputError, match=r"b\.csv' holds '\\x1b\[31mred': the name of a class") as caught:
        Federation.from_folder(tmp_path)
    assert str(caught.value).isprintable()


def test_a_file_that_changes_is_noticed(tmp_path):
    write(tmp_path, a="u,y\n1,no\n2,yes\n", b="u,y\n1,no\n")
    for text, match in (
        ("u,y\n1,maybe\n", "not there before"),
        ("u,y\n1,no\n2,no\n", "has changed"),
        ("w,y\n1,no\n", "lacks"),
    ):
        federation = Federation.from_folder(tmp_path)
        write(tmp_path, b=text)
        with pytest.raises(InputError, match=match):
            federation.client("b")
        write(tmp_path, b="u,y\n1,no\n")


def test_suffixes_are_read_in_any_case_and_hidden_files_left_out(tmp_path):
    (tmp_path / "A.CSV").write_text("u,y\n1,0\n")
    (tmp_path / "._A.csv").write_bytes(b"\0\0")
    (tmp_path / "b.csv").write_text("u,y\n1,1\n")
    assert tuple(Federation.from_folder(tmp_path).ids) == ("A", "b")


def test_precision_of_tables(tmp_path):
    write(tmp_path, a="u,y\n0.1,0.1\n")
    single, double = Federation.from_folder(tmp_path), Federation.from_folder(tmp_path, dtype="float64")
    assert single.client("a").x.item() == np.float32(0.1)
    assert (double.client("a").x.item(), double.client("a").y.item()) == (0.1, 0.1)
    with pytest.raises(InputError, match="'float32' or 'float64'"):
        Federation.from_folder(tmp_path, dtype="float8")


def test_parquet_without_pyarrow_is_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match="needs the package pyarrow: pip install pyarrow"):
        Federation.from_folder(tmp_path)


@needs_pyarrow
def test_parquet_files(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"u": [1, 2], "v": [0.5, 1.5], "y": ["no", "yes"]}), tmp_path / "a.parquet")
    parquet.write_table(pa.table({"v": [2.5], "u": [True], "y": ["yes"]}), tmp_path / "b.parquet")
    write(tmp_path, c="u,v,y\n7,8,no\n")
    federation = Federation.from_folder(tmp_path)
    assert federation.info.classes == ("no", "yes")
    assert federation.client("a").x.tolist() == [[1, 0.5], [2, 1.5]]
    assert federation.client("b").x.tolist() == [[1, 2.5]]
    parquet.write_table(pa.table({"u": [1, None], "v": [0.5, 1.5], "y": ["no", "yes"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"row 1, column 'u' of '.*a\.parquet'"):
        Federation.from_folder(tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(InputError, match=r"not a usable \.parquet file"):
        Federation.from_folder(tmp_path)


@needs_pyarrow
@pytest.mark.parametrize("wrong", ["u", "y", "who"])
@pytest.mark.parametrize("values", [[[1.0, 2.0], [3.0]], [[1.0], [2.0]], [None, [3.0]], [{"a": 1}, {"a": 2}]])
def test_columns_of_lists_are_refused_by_name(tmp_path, wrong, values):
    import pyarrow
    from pyarrow import parquet

    columns = {"u": [1.0, 2.0], "v": [3.0, 4.0], "who": ["p", "q"], "y": [0, 1]} | {wrong: values}
    parquet.write_table(pyarrow.table(columns), tmp_path / "all.parquet")
    match = (
        f"column '{wrong}' of '.*all.parquet' (holds a|has the shape|cannot be read).*; it must have one value per row"
    )
    with pytest.raises(InputError, match=match):
        Federation.from_frame(tmp_path / "all.parquet", client="who", target="y")
    with pytest.raises(InputError, match=match.replace("'.*all.parquet'", "the frame")):
        Federation.from_frame(columns, client="who", target="y")


def test_what_is_left_out_of_a_folder_is_named(tmp_path):
    write(tmp_path, a="u,y\n1,0\n2,1\n")
    (tmp_path / ".DS_Store").write_bytes(b"")
    assert Federation.from_folder(tmp_path).ids == ("a",)
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"u,y\n1,0\n"))
    (tmp_path / "more").mkdir()
    with pytest.warns(ParleyWarning, match=r"leaves out 'c\.csv\.gz' and the folder 'more'") as said:
        assert Federation.from_folder(tmp_path).ids == ("a",)
    assert len(said) == 1
    for n in range(20):
        (tmp_path / f"note\n{n}.txt").write_text("")
    with pytest.warns(ParleyWarning, match="and 18 others") as said:
        Federation.from_folder(tmp_path)
    assert str(said[0].message).isprintable()


def test_dummies_of_pandas_are_read_back_as_numbers(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.get_dummies(pandas.DataFrame({"u": [1.5, 2.5, 3.5], "town": ["p", "q", "p"]})).assign(y=[0, 1, 1])
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert "True" in (tmp_path / "a.csv").read_text()
    read = Federation.from_folder(tmp_path, target="y").client("a").x
    assert read.tolist() == [[1.5, 1, 0], [2.5, 0, 1], [3.5, 1, 0]]


@pytest.mark.parametrize(("true", "false"), [("True", "False"), ("TRUE", "FALSE"), ("true", " false ")])
def test_true_and_false_are_one_and_zero_as_inputs_and_names_as_targets(tmp_path, true, false):
    write(tmp_path, a=f"u,v,y\n{true},2,{true}\n{false},,{false}\n", b=f"u,v,y\n1,2,{true}\n")
    federation = Federation.from_folder(tmp_path, missing=True)
    assert federation.client("a").x[:, 0].tolist() == [1, 0]
    assert federation.info.classes == (false.strip(), true.strip())
    assert federation.client("a").y.tolist() == [1, 0]


@pytest.mark.parametrize("word", ["yes", "T", "tRue", "wahr", "True."])
def test_other_words_are_texts(tmp_path, word):
    write(tmp_path, a=f"u,v,y\nTrue,1,0\nFalse,{word},1\n")
    with pytest.raises(InputError, match=f"line 3, column 'v' of .* holds '{word}'; inputs must be numbers"):
        Federation.from_folder(tmp_path)


def narrow(scale: float, offset: float, known: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return np.where(rng.random(300) < known, offset + scale * rng.random(300), 0), rng.random(300)


def csv_of(column: np.ndarray, target: np.ndarray) -> str:
    rows = zip(column.tolist(), target.tolist(), strict=True)
    return "dose,when,y\n" + "".join(f"{i % 7},{x!r},{y!r}\n" for i, (x, y) in enumerate(rows))


@pytest.mark.parametrize(
    ("scale", "offset", "known"),
    [(3600.0, 1.7e9, 1.0), (3600.0, 1.7e9, 0.6), (3.6e12, 1.7e18, 1.0), (1e-3, 1e5, 1.0), (1e-46, 0.0, 1.0)],
)
def test_columns_that_float32_cannot_hold_are_never_rounded_unasked(tmp_path, scale, offset, known):
    """Of a folder, a file and a frame; as inputs and as targets."""
    hard, plain = narrow(scale, offset, known)
    one, other = tmp_path / "inputs", tmp_path / "targets"
    one.mkdir(), other.mkdir()
    write(one, a=csv_of(hard, plain))
    write(other, a=csv_of(plain, hard))
    frame = {"client": ["a"] * 300, "when": hard, "y": plain}
    turned = frame | {"when": plain, "y": hard}
    told = r"has \d+ different numbers, which float32 rounds to \d+; set dtype = \"float64\" to keep them"
    for what, made in (
        (r"column 'when' of '.*a\.csv' ", lambda **how: Federation.from_folder(one, **how)),
        (r"the target of '.*a\.csv' ", lambda **how: Federation.from_folder(other, **how)),
        ("column 'when' of the frame ", lambda **how: Federation.from_frame(frame, client="client", target="y", **how)),
        ("the target of the frame ", lambda **how: Federation.from_frame(turned, client="client", target="y", **how)),
    ):
        with pytest.raises(InputError, match=what + told):
            made()
        kept = made(dtype="float64").client("a")
        assert hard.tolist() in (kept.x[:, -1].tolist(), kept.y.tolist())
        assert made(dtype="float32").client("a").x.dtype == torch.float32
    single = plain.astype(np.float32)[:, None]
    with pytest.raises(InputError, match="client 'a': the target " + told):
        Federation.from_arrays({"a": (single, hard)})


@pytest.mark.parametrize(
    "column",
    [
        5e5 + 10 * np.random.default_rng(0).random(3000),  # more than 255 numbers are left
        np.arange(300) % 3 * 0.1 + np.random.default_rng(0).integers(-4, 5, 300) * 1e-17,  # noise of rounding
        np.full(300, 1.7e18),
        np.arange(300) + 16_000_000.0,
        np.random.default_rng(0).normal(size=300) * 1e-30,
    ],
)
def test_columns_that_float32_holds_are_float32(tmp_path, column):
    write(tmp_path, a=csv_of(column, np.arange(len(column)) / 7))
    assert Federation.from_folder(tmp_path).client("a").x.dtype == torch.float32

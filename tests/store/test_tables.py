"""Tables for other programs: numbers and failures, with nothing in them that a spreadsheet would compute."""

import csv
import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from parley.core.errors import InputError, UnsupportedError
from parley.store.records import Failure, Metric, RoundRecord
from parley.store.runs import RunStore
from parley.store.tables import results

NAME = '=HYPERLINK("http://x","c")'


@pytest.fixture
def store(tmp_path: Path):
    with RunStore(tmp_path / "store" / "runs.db") as store:
        run = store.create("x", {}, "")
        store.commit(
            run,
            [
                RoundRecord(0, {"loss": Metric(-0.5, {"a": -0.25, NAME: 1.0})}),
                RoundRecord(
                    1, {"loss": Metric(float("nan"))}, (Failure("b", "too slow"), Failure(NAME, "@raised\nit"))
                ),
            ],
        )
        yield store


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_numbers_as_csv(store: RunStore, tmp_path: Path):
    store.export_csv("last", tmp_path / "out" / "run.csv")
    assert rows(tmp_path / "out" / "run.csv") == [
        ["round", "metric", "client", "value"],
        ["0", "loss", "", "-0.5"],
        ["0", "loss", "a", "-0.25"],
        ["0", "loss", f"'{NAME}", "1.0"],
        ["1", "loss", "", "nan"],
    ]


def test_who_was_missing_and_why(store: RunStore, tmp_path: Path):
    found = store.failures("last")
    assert found == [("b", 1, "too slow"), (NAME, 1, "@raised\nit")]
    assert (found[0].client, found[0].round, found[0].reason) == ("b", 1, "too slow")
    store.export_failures("last", tmp_path / "failures.csv")
    assert rows(tmp_path / "failures.csv") == [
        ["client", "round", "reason"],
        ["b", "1", "too slow"],
        [f"'{NAME}", "1", "'@raised\nit"],
    ]


def test_a_data_frame(store: RunStore):
    pandas = pytest.importorskip("pandas")
    frame = store.frame("last")
    assert list(frame.columns) == ["round", "metric", "client", "value"]
    assert frame.set_index("client").value[NAME] == 1.0
    assert pandas.isna(frame.value.iloc[-1])
    empty = store.create("empty", {}, "")
    assert list(store.frame(empty).columns) == ["round", "metric", "client", "value"]


def test_a_data_frame_is_made_of_columns(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    frame = store.frame("last")
    assert list(frame) == ["round", "metric", "client", "value"]
    assert frame["client"] == ("", "a", NAME, "")
    assert frame["value"][:3] == (-0.5, -0.25, 1.0)


@pytest.mark.parametrize(("package", "action"), [("pandas", "frame"), ("pyarrow", "export_parquet")])
def test_packages_that_are_missing_are_named(store: RunStore, tmp_path: Path, monkeypatch, package: str, action: str):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError, match=f"the package {package}; install it"):
        getattr(store, action)(*["last", tmp_path / "run.parquet"][: 1 if action == "frame" else 2])
    assert not (tmp_path / "run.parquet").exists()


def test_parquet(store: RunStore, tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    store.export_parquet("last", tmp_path / "run.parquet")
    table = parquet.read_table(tmp_path / "run.parquet").to_pydict()
    assert table["client"] == ["", "a", NAME, ""]  # cells have types there, so nothing is taken for a formula
    store.export_failures("last", tmp_path / "failures.parquet")
    assert parquet.read_table(tmp_path / "failures.parquet").num_rows == 2


def test_a_folder_that_takes_nothing_is_one_sentence(store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        store.export_csv("last", tmp_path / "file" / "below.csv")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="No space left on device"):
        store.export_csv("last", tmp_path / "out" / "run.csv")
    assert list((tmp_path / "out").iterdir()) == []


def test_results_of_a_path(store: RunStore, tmp_path: Path):
    """As of the open store; a path that does not exist is refused, and nothing is made there."""
    pytest.importorskip("pandas")
    whole = results(store)
    assert whole["metric"].tolist() == ["loss", "loss"]
    for path in (store.path, str(store.path), store.path.parent):
        assert results(path).equals(whole)
    with pytest.raises(InputError, match=r"there is no run store at .*nope\.db"):
        results(tmp_path / "nope.db")
    assert not (tmp_path / "nope.db").exists()

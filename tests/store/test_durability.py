"""Whatever a power failure or a careless copy leaves of a store, resuming gives the same numbers or says why not."""

import shutil
import sqlite3
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from parley.core.errors import InputError
from parley.store.runs import RunStore

METHODS = ["fedadam", "local-only", "scaffold", "fedals"]


@pytest.fixture(scope="module", params=METHODS)
def copies(request, lab, tmp_path_factory) -> tuple[str, Path]:
    """A method, and its store as it was after each round's checkpoint."""
    folder = tmp_path_factory.mktemp("copies")
    lab.copies(request.param, folder)
    return request.param, folder


def put(folder: Path, store: Path, parts: dict[str, int]) -> None:
    """A folder whose parts (`store`, `states`, `memory`) are those of different moments."""
    store.parent.mkdir()
    for part, moment in parts.items():
        source = folder / str(moment)
        for path in [path for path in source.rglob("*") if path.is_file()]:
            kind = "memory" if path.parent.name == "memory" else "states" if "artefacts" in path.parts else "store"
            if kind == part:
                target = store.parent / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)


def test_a_copy_of_any_moment_resumes_to_the_same_numbers(copies, lab, tmp_path: Path):
    method, folder = copies
    for moment in range(lab.rounds + 1):
        store = tmp_path / str(moment) / "runs.db"
        put(folder, store, dict.fromkeys(("store", "states", "memory"), moment))
        assert lab.resume(method, store) == lab.whole(method), moment


def test_a_log_that_fell_back_by_one_checkpoint_loses_nothing(copies, lab, tmp_path: Path):
    """What a disk that says it has written, and has not, leaves: the one before the last checkpoint is still whole."""
    method, folder = copies
    for moment in range(1, lab.rounds - 1):  # the last round is saved twice, the second time with its status
        store = tmp_path / str(moment) / "runs.db"
        put(folder, store, {"store": moment, "states": moment + 1, "memory": moment + 1})
        assert lab.resume(method, store) == lab.whole(method), moment


@pytest.mark.parametrize("moments", list(product([1, 3, 6], repeat=3)))
def test_parts_of_different_moments(copies, lab, tmp_path: Path, moments: tuple[int, int, int]):
    method, folder = copies
    put(folder, tmp_path / "mixed" / "runs.db", dict(zip(("store", "states", "memory"), moments, strict=True)))
    result = lab.resume(method, tmp_path / "mixed" / "runs.db")
    assert isinstance(result, str) or result == lab.whole(method)


@pytest.mark.parametrize("harm", ["folder", "index", "records", "emptied", "rows", "renamed", "moved", "cut"])
def test_memories_that_are_not_the_checkpoint_s_are_refused(copies, lab, tmp_path: Path, harm: str):
    method, folder = copies
    if method == "fedadam":
        pytest.skip("clients keep nothing")
    store = tmp_path / "harmed" / "runs.db"
    put(folder, store, dict.fromkeys(("store", "states", "memory"), 4))
    (memory,) = store.parent.glob("artefacts/*/memory")
    if harm == "folder":
        shutil.rmtree(memory)
    elif harm in ("index", "records"):
        for path in memory.glob(f"{harm}*"):
            path.unlink()
    elif harm == "cut":
        with (memory / "records").open("rb+") as file:
            file.truncate((memory / "records").stat().st_size // 2)
    else:
        statement = {
            "emptied": "DELETE FROM versions",
            "rows": "DELETE FROM versions WHERE client = (SELECT min(client) FROM versions)",
            "renamed": "UPDATE versions SET client = 'c9' WHERE client = (SELECT min(client) FROM versions)",
            "moved": "UPDATE versions SET offset = offset + 64 WHERE client = (SELECT min(client) FROM versions)",
        }[harm]
        with closing(sqlite3.connect(memory / "index.db")) as db, db:
            db.execute(statement)
    refused = lab.resume(method, store)
    assert isinstance(refused, str)
    assert "memories of clients" in refused


def test_a_refused_run_is_left_as_it_was(lab, tmp_path: Path):
    lab.copies("local-only", tmp_path)
    store = tmp_path / "mixed" / "runs.db"
    put(tmp_path, store, {"store": 4, "states": 4, "memory": 1})
    assert isinstance(lab.resume("local-only", store), str)
    (memory,) = store.parent.glob("artefacts/*/memory")
    shutil.rmtree(memory)
    shutil.copytree(next((tmp_path / "4").glob("artefacts/*/memory")), memory)
    assert lab.resume("local-only", store) == lab.whole("local-only")


def test_every_flipped_byte_of_a_state_or_memory_is_noticed(lab, tmp_path: Path):
    lab.copies("scaffold", tmp_path)
    source = tmp_path / "4"
    files = [*source.rglob("state-00000004.safetensors"), *source.rglob("records")]
    assert len(files) == 2
    for path in files:
        data = path.read_bytes()
        for place in range(7, len(data), len(data) // 12):
            path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
            shutil.copytree(source, tmp_path / "damaged")
            result = lab.resume("scaffold", tmp_path / "damaged" / "runs.db")
            assert result == lab.whole("scaffold") or (isinstance(result, str) and "damaged" in result)
            shutil.rmtree(tmp_path / "damaged")
        path.write_bytes(data)


def test_commits_are_on_disk_when_they_return(tmp_path: Path):
    with RunStore(tmp_path / "runs.db") as store:
        assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_records_that_do_not_belong_to_the_checkpoint_are_refused(lab, tmp_path: Path):
    store = tmp_path / "runs.db"
    run = lab.train("fedadam", store).id
    with closing(sqlite3.connect(store)) as db, db:
        for table in ("rounds", "metrics"):
            db.execute(f"DELETE FROM {table} WHERE round = 3")
    with RunStore(store) as runs, pytest.raises(InputError, match="list of rounds is not as it was written"):
        runs.records(str(run))
    assert isinstance(lab.resume("fedadam", store), str)

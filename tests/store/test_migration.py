"""Stores of format 1: their numbers are read as they were; what cannot be verified is refused in a sentence."""

import json
import sqlite3
import subprocess
import sys
import zlib
from contextlib import closing
from pathlib import Path

import pytest
import torch

from parley.core.errors import InputError
from parley.core.message import Payload
from parley.core.wire import encode
from parley.store.checkpoints import Checkpoints
from parley.store.memories import Memories
from parley.store.records import Failure, Metric, RoundRecord
from parley.store.runs import RunStore

FORMAT_1 = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, status TEXT NOT NULL,
    created REAL NOT NULL, fingerprint TEXT NOT NULL, config TEXT NOT NULL, summary TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE rounds (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, round INTEGER NOT NULL, committed REAL NOT NULL,
    PRIMARY KEY (run, round)
) WITHOUT ROWID;
CREATE TABLE metrics (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, metric TEXT NOT NULL, round INTEGER NOT NULL, value REAL,
    n INTEGER NOT NULL, min REAL, mean REAL, max REAL, clients BLOB, PRIMARY KEY (run, metric, round)
) WITHOUT ROWID;
CREATE TABLE failures (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, round INTEGER NOT NULL, position INTEGER NOT NULL,
    client TEXT NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (run, round, position)
) WITHOUT ROWID;
CREATE TABLE checkpoints (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, round INTEGER NOT NULL, manifest TEXT NOT NULL,
    PRIMARY KEY (run, round)
) WITHOUT ROWID;
PRAGMA application_id = 0x5041524C;
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
"""
RECORDS = [
    RoundRecord(0, {"loss": Metric(1.5)}),
    RoundRecord(1, {"loss": Metric(0.1, {"a": 0.1, "b": -0.25}), "seconds": Metric(2.0)}, (Failure("b", "too slow"),)),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store as format 1 kept it: a run stopped after round 1, and one that has not begun."""
    path = tmp_path / "runs.db"
    manifest = {"last": {"tensors": {"w": ["state-00000001.safetensors", "last/w"]}, "scalars": {"n": 3}}}
    checkpoint = {"round": 1, "states": manifest, "best_round": 1, "best_value": 0.5}
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(FORMAT_1)
        row = (1, "fedavg-abcd", "FedAvg", "stopped", 1.7e9, "print", '{"rounds": 9}', '{"rounds": 1}')
        db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        db.execute("INSERT INTO runs VALUES (2, 'b-2222', 'b', 'running', 1, '', '{}', '{}')")
        for record in RECORDS:
            db.execute("INSERT INTO rounds VALUES (1, ?, 1.7e9)", (record.number,))
            for name, metric in record.metrics.items():
                packed = zlib.compress(json.dumps(metric.clients).encode(), 1) if metric.clients else None
                values = (name, record.number, metric.value, len(metric.clients), packed)
                db.execute("INSERT INTO metrics VALUES (1, ?, ?, ?, ?, NULL, NULL, NULL, ?)", values)
            for place, failure in enumerate(record.failures):
                values = (record.number, place, failure.client, failure.reason)
                db.execute("INSERT INTO failures VALUES (1, ?, ?, ?, ?)", values)
        db.execute("INSERT INTO checkpoints VALUES (1, 1, ?)", (json.dumps(checkpoint),))
    folder = tmp_path / "artefacts" / "fedavg-abcd"
    folder.mkdir(parents=True)
    (folder / "state-00000001.safetensors").write_bytes(encode(Payload({"last/w": torch.ones(3)})))
    return path


def check(store: RunStore) -> None:
    info = store.info("fedavg")
    assert (info.status, info.rounds, info.config, info.summary) == ("stopped", 1, {"rounds": 9}, {"rounds": 1})
    assert [other.id for other in store.runs()] == ["fedavg-abcd", "b-2222"]
    assert store.records(info.id) == RECORDS
    assert store.series(info.id, "loss")[1].tolist() == [1.5, 0.1]
    assert [tuple(row) for row in store.failures(info.id)] == [("b", 1, "too slow")]


def test_numbers_are_migrated(path: Path):
    for _ in range(2):
        with RunStore(path) as store:
            check(store)
            assert store._db.execute("PRAGMA user_version").fetchone() == (3,)
            assert store._db.execute("PRAGMA application_id").fetchone() == (0x5041524C,)
            assert store._db.execute("PRAGMA foreign_key_check").fetchall() == []
            assert store._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with RunStore(path) as store:
        store.commit("b-2222", [RECORDS[0]])
        store.delete("fedavg")
        assert store._db.execute("SELECT count(*) FROM metrics").fetchone() == (1,)


def test_models_can_be_read_and_runs_not_resumed(path: Path, lab):
    with RunStore(path) as store:
        found = store.checkpoint("fedavg-abcd")
        assert found is not None
        state = Checkpoints(store.folder("fedavg")).load(found[1])["last"]
        assert (state.tensors["w"].tolist(), state.scalars) == ([1.0, 1.0, 1.0], {"n": 3})
    with pytest.raises(InputError, match="begun by an earlier Parley"):
        lab.train("fedadam", path, resume="fedavg-abcd")
    with RunStore(path) as store:
        check(store)


def test_a_store_that_cannot_be_written_is_migrated_in_ram(path: Path, monkeypatch: pytest.MonkeyPatch):
    for module in ("schema", "database"):
        monkeypatch.setattr(f"parley.store.{module}.can_write", lambda _: False)
    before = path.read_bytes()
    with RunStore(path) as store:
        check(store)
        with pytest.raises(InputError, match="cannot be written"):
            store.create("x", {}, "")
    assert path.read_bytes() == before


def test_processes_that_migrate_at_once(path: Path):
    code = (
        "import sys; from parley.store.runs import RunStore; print(len(RunStore(sys.argv[1]).records('fedavg-abcd')))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [process.communicate()[0] for process in processes] == ["2\n"] * 3


def test_a_damaged_or_foreign_store_of_format_1_is_left_as_it_was(path: Path):
    for statement in ("UPDATE metrics SET clients = x'00' WHERE clients IS NOT NULL",
                      "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM rounds; END"):  # fmt: skip
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(statement)
        with pytest.raises(InputError, match=r"damaged|other tables"):
            RunStore(path)
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (1,)
            assert db.execute("SELECT count(*) FROM runs").fetchone() == (2,)


def test_memories_of_format_1_are_refused(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "index.db")) as db, db:
        db.execute("CREATE TABLE versions (client TEXT, round INTEGER, offset INTEGER, length INTEGER, "
                   "PRIMARY KEY (client, round)) WITHOUT ROWID")  # fmt: skip
    (tmp_path / "records").write_bytes(b"")
    with pytest.raises(InputError, match="other tables than Parley made"):
        Memories(tmp_path, until=1)["a"]


@pytest.mark.parametrize("writable", [True, False])
def test_a_store_of_format_2_lacks_only_what_can_be_done_without(
    tmp_path: Path, writable: bool, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "runs.db"
    with RunStore(path) as store:
        run = store.create("x", {}, "")
        store.commit(run, RECORDS, status="finished", summary={})
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE curves")
        db.execute("PRAGMA user_version = 2")
    if not writable:
        for module in ("schema", "database"):
            monkeypatch.setattr(f"parley.store.{module}.can_write", lambda path: False)
    with RunStore(path, create=False) as store:
        assert store.records(run) == RECORDS
        assert {name: values.tolist() for name, (_, values) in store.curves(run).items()} == {
            "loss": [1.5, 0.1], "seconds": [2.0],
        }  # fmt: skip
        assert [one.client for one in store.failures(run)] == ["b"]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (3 if writable else 2,)

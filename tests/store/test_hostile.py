"""Stores that somebody else made: nothing outside their folder is touched, and what is wrong is one sentence."""

import json
import os
import sqlite3
import struct
import zlib
from contextlib import closing, suppress
from pathlib import Path

import pytest

from parley.core.errors import InputError, ParleyError
from parley.store.checkpoints import Checkpoints
from parley.store.database import checksum
from parley.store.memories import Memories
from parley.store.records import Failure, Metric, RoundRecord
from parley.store.rows import metric_checksum
from parley.store.runs import RunStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one run of two rounds."""
    with RunStore(tmp_path / "store" / "runs.db") as store:
        run = store.create("x", {"rounds": 2}, "print")
        records = [RoundRecord(n, {"loss": Metric(0.5, {"a": 1.0})}, (Failure("b", "too slow"),)) for n in range(2)]
        store.commit(run, records, checkpoint={"round": 1}, summary={"rounds": 1})
    return tmp_path / "store" / "runs.db"


def forge(path: Path, table: str, **values: object) -> None:
    """Change the first row as an adversary would, who knows how checksums are made."""
    with closing(sqlite3.connect(path)) as db, db:
        columns = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
        first = dict(zip(columns, db.execute(f"SELECT * FROM {table} LIMIT 1").fetchone(), strict=True))
        row = first | values
        if "checksum" in row:
            covered = [value for name, value in row.items() if name not in (columns[0], "checksum", "clients")]
            with suppress(struct.error):  # no checksum fits values of such types
                row["checksum"] = (metric_checksum if table == "metrics" else checksum)(*covered)
        where = "number = 1" if table == "runs" else f"run = 1 AND round = {first['round']}"
        db.execute(f"UPDATE {table} SET {', '.join(f'{name} = :{name}' for name in row)} WHERE {where}", row)


def use(path: Path, run: str) -> None:
    """Everything that can be done with a run."""
    with RunStore(path) as store:
        for action in (
            store.info,
            store.records,
            store.failures,
            store.metric_names,
            store.checkpoint,
            store.folder,
            store.claim,
            store.delete,
            lambda run: store.series(run, "loss"),
            lambda run: store.export_csv(run, path.parent / "out.csv"),
            lambda _: store.runs(),
            lambda _: store.unfinished("print"),
        ):
            with suppress(ParleyError):
                action(run)


@pytest.mark.parametrize(
    "name", ["../../victim", "/victim", "..", ".", "", "a/b", "Victim", "x\x00y", "\x1b[2J", "x" * 99]
)
def test_no_folder_outside_the_store_is_touched(path: Path, tmp_path: Path, name: str):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("here")
    forge(path, "runs", id=name.replace("/victim", str(victim)) if name == "/victim" else name)
    before = sorted(tmp_path.rglob("*"))
    for run in (name, "last", name[:2]):
        use(path, run)
        with RunStore(path) as store, pytest.raises(InputError, match="do not trust this file"):
            store.delete("last")
    assert [entry for entry in sorted(tmp_path.rglob("*")) if "runs.db" not in entry.name] == [
        entry for entry in before if "runs.db" not in entry.name
    ]


@pytest.mark.parametrize("place", ["artefacts", "run"])
def test_folders_that_are_links_are_refused(path: Path, tmp_path: Path, place: str):
    victim = tmp_path / "victim"
    with RunStore(path) as store:
        run = store.info("last").id
    (victim / run).mkdir(parents=True)
    (victim / run / "precious").write_text("here")
    artefacts = path.parent / "artefacts"
    if place == "artefacts":
        artefacts.symlink_to(victim)
    else:
        artefacts.mkdir()
        (artefacts / run).symlink_to(victim / run)
    with RunStore(path) as store:
        for action in (store.delete, store.claim, store.folder):
            with pytest.raises(InputError, match="is a link to another place"):
                action(run)
    assert [entry.name for entry in (victim / run).iterdir()] == ["precious"]


def test_links_inside_a_run_s_folder_are_not_followed(path: Path, tmp_path: Path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_bytes(b"precious")
    with RunStore(path) as store:
        run = store.info("last").id
        folder = store.folder(run)
        (folder / "lock").symlink_to(victim / "lock")
        with pytest.raises(InputError, match="cannot be claimed"):
            store.claim(run)
        (folder / "lock").unlink()
        (folder / "memory").symlink_to(victim)
        with pytest.raises(InputError, match="link to another place"):
            Memories(folder / "memory", budget=0).accept(1, {"a": _memory()})
        (folder / "memory").unlink()
        for name in ("records", "index.db"):
            (folder / "memory").mkdir(exist_ok=True)
            (folder / "memory" / name).symlink_to(victim / "file")
            with pytest.raises(InputError):
                Memories(folder / "memory", budget=0).accept(1, {"a": _memory()})
            (folder / "memory" / name).unlink()
        (folder / "state-00000001.safetensors").symlink_to(victim / "file")
        with pytest.raises(InputError, match="cannot be read"):
            Checkpoints(folder).load(_manifest("state-00000001.safetensors", b"precious"))
        store.delete(run)
    assert [entry.name for entry in victim.iterdir()] == ["file"]
    assert (victim / "file").read_bytes() == b"precious"


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "state-00000001.safetensors/../../x", "", 3, None]
)
def test_a_checkpoint_names_only_files_of_its_own(tmp_path: Path, name: object):
    (tmp_path / "run").mkdir()
    (tmp_path / "outside.safetensors").write_bytes(b"")
    with pytest.raises(InputError):
        Checkpoints(tmp_path / "run").load(_manifest(name, b""))


@pytest.mark.parametrize(
    "manifest",
    [{}, {"states": []}, {"states": {"last": {}}}, {"states": {"last": {"tensors": {"a": 3}, "scalars": {}}}}],
)
def test_a_checkpoint_that_is_none_is_one_sentence(tmp_path: Path, manifest: dict):
    with pytest.raises(InputError, match="is damaged"):
        Checkpoints(tmp_path).load(manifest)


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("runs", {"config": "[]"}), ("runs", {"config": "{"}), ("runs", {"config": "[" * 100_000}),
        ("runs", {"summary": '{"rounds": [1]}'}), ("runs", {"summary": "null"}), ("runs", {"created": 1e300}),
        ("runs", {"created": "yesterday"}), ("runs", {"status": "\x1b[2J"}), ("runs", {"last": 10**9}),
        ("runs", {"count": "many"}), ("rounds", {"metrics": "[[]]"}), ("rounds", {"metrics": '{"a": 1}'}),
        ("rounds", {"metrics": 7}), ("rounds", {"round": "x"}), ("rounds", {"failures": b"\xff"}),
        ("metrics", {"value": "=1+1"}), ("metrics", {"n": 10**15}), ("metrics", {"metric": "\x1b]0;x\x07"}),
        ("failures", {"client": b"\xff"}), ("failures", {"reason": "\x1b[2J"}),
        ("checkpoints", {"manifest": "[1]"}), ("checkpoints", {"manifest": b"\x00"}),
    ],
)  # fmt: skip
def test_rows_of_an_adversary_are_one_sentence(path: Path, table: str, values: dict[str, object]):
    forge(path, table, **values)
    use(path, "last")


@pytest.mark.parametrize(
    "clients",
    [
        b"x",
        zlib.compress(b"[]"),
        zlib.compress(b'{"a": "1"}'),
        zlib.compress(b'{"a": 1}'),
        zlib.compress(b"{}")[:-2],
        zlib.compress(b'{"a": 1' + b"0" * 400 + b"}"),
        zlib.compress(b"[" * 10**6),
        zlib.compress(b" " * 2**29, 1),
    ],
    ids=range(8),
)
def test_packed_values_of_an_adversary_are_one_sentence(path: Path, clients: bytes):
    forge(path, "metrics", clients=clients, packed=zlib.crc32(clients))
    with RunStore(path) as store, pytest.raises(InputError, match="is damaged"):
        store.records(store.info("last").id)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER UPDATE ON runs BEGIN DELETE FROM rounds; END",
        "CREATE VIEW v AS SELECT * FROM runs",
        "DROP TABLE failures",
        "ALTER TABLE runs ADD COLUMN more",
    ],
)
def test_tables_that_are_not_ours_are_refused(path: Path, statement: str):
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)
    with pytest.raises(InputError, match="other tables than Parley made"):
        RunStore(path)


def test_a_pipe_in_place_of_a_state_does_not_wait_for_ever(tmp_path: Path):
    os.mkfifo(tmp_path / "state-00000001.safetensors")
    with pytest.raises(InputError, match="cannot be read"):
        Checkpoints(tmp_path).load(_manifest("state-00000001.safetensors", b""))


def _memory():
    import torch

    from parley.core.message import Memory

    return Memory.of(x=torch.ones(3))


def _manifest(name: object, data: bytes) -> dict:
    place = json.loads(json.dumps([name, "last/x"]))
    return {"states": {"last": {"tensors": {"x": place}, "scalars": {}}}, "files": {str(name): zlib.crc32(data)}}

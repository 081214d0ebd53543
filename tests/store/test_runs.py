"""The run store: what goes in comes out, from several processes, and whatever happens to them."""

import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.store import database, locks, schema
from parley.store.database import checksum
from parley.store.records import Failure, Metric, RoundRecord
from parley.store.runs import RunStore, store_path


@pytest.fixture
def store(tmp_path: Path):
    with RunStore(tmp_path / "runs.db") as store:
        yield store


def record(number: int, **values: float) -> RoundRecord:
    metrics = {name: Metric(value, {"a": value, "b": value + 1}) for name, value in values.items()}
    return RoundRecord(number, metrics or {"seconds": Metric(0.5)}, (Failure("b", "too slow"),))


def process(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True, **options
    )


def test_a_run_comes_back_as_it_was_committed(store: RunStore):
    run = store.create("FedAvg on digits!", {"rounds": 3}, "abc")
    assert run.startswith("fedavg-on-digits-")
    records = [record(n, accuracy=n / 3, loss=1 / (n + 1)) for n in range(3)]
    store.commit(run, records[:2])
    store.commit(run, records[2:], status="finished", summary={"best": 0.5})
    assert store.records(run) == records
    assert store.metric_names(run) == ["accuracy", "loss"]
    rounds, values = store.series(run, "accuracy")
    np.testing.assert_array_equal(rounds, [0, 1, 2])
    np.testing.assert_array_equal(values, [0, 1 / 3, 2 / 3])
    info = store.info(run)
    assert (info.id, info.status, info.rounds, info.config) == (run, "finished", 2, {"rounds": 3})
    assert (info.fingerprint, info.summary, info.name) == ("abc", {"best": 0.5}, "FedAvg on digits!")
    assert [other.id for other in store.runs()] == [run]


@settings(deadline=None, max_examples=20)
@given(st.dictionaries(st.text(max_size=8), st.floats(), max_size=5), st.floats())
def test_any_number_survives(clients: dict[str, float], value: float):
    with TemporaryDirectory() as folder, RunStore(Path(folder) / "runs.db") as store:
        run = store.create("x", {}, "")
        store.commit(run, [RoundRecord(1, {"loss": Metric(value, clients)})])
        metric = store.records(run)[0].metrics["loss"]
    np.testing.assert_array_equal(metric.value, value)  # NaN included; SQLite alone drops the sign of -0.0
    assert list(metric.clients) == list(clients)
    np.testing.assert_array_equal(list(metric.clients.values()), list(clients.values()))


def test_float32_values_are_kept_as_numbers(store: RunStore):
    run = store.create("x", {}, "")
    store.commit(run, [RoundRecord(0, {"loss": Metric(np.float32(0.5), {"a": np.float32(0.25)})})])  # type: ignore[arg-type]
    assert store.records(run)[0].metrics["loss"] == Metric(0.5, {"a": 0.25})


def test_summary_columns_describe_the_clients(store: RunStore):
    run = store.create("x", {}, "")
    store.commit(run, [RoundRecord(0, {"loss": Metric(9.0, {"a": 1.0, "b": math.nan, "c": 4.0})})])
    with sqlite3.connect(store.path) as db:
        assert db.execute("SELECT value, n, min, mean, max FROM metrics").fetchall() == [(9.0, 3, 1.0, 2.5, 4.0)]
    db.close()


def test_a_record_replaces_the_one_of_its_round(store: RunStore):
    run = store.create("x", {}, "")
    store.commit(run, [record(0, a=1.0, b=2.0), record(1, a=1.0)])
    store.commit(run, [RoundRecord(0, {"a": Metric(3.0)})])
    assert store.records(run) == [RoundRecord(0, {"a": Metric(3.0)}), record(1, a=1.0)]


def test_checkpoints_and_rewinding(store: RunStore):
    run = store.create("x", {}, "")
    assert store.checkpoint(run) is None
    for number in range(5):
        store.commit(run, [record(number)], checkpoint={"file": f"{number}.safetensors"})
    assert store.checkpoint(run) == (4, {"file": "4.safetensors"})
    store.commit(run, [record(5)])
    store.rewind(run, 3)
    assert store.checkpoint(run) == (3, {"file": "3.safetensors"})
    assert store.records(run) == [record(n) for n in range(4)]
    store.commit(run, [RoundRecord(4, {"seconds": Metric(0.5)})])  # redone, this time without a failure
    assert store.records(run)[4].failures == ()
    store.rewind(run, 2)
    assert store.checkpoint(run) is None  # only the two newest were kept
    store.rewind(run, -1)
    assert store.records(run) == []


def test_a_commit_is_all_or_nothing(store: RunStore):
    run = store.create("x", {}, "")
    with pytest.raises(TypeError):
        store.commit(run, [record(0)], checkpoint={"not": object()}, status="finished")
    assert store.records(run) == []
    assert store.info(run).status != "finished"


def test_latest_has_last_values_and_totals(store: RunStore):
    """Of a run that is going on; another run beside it does not matter."""
    other, run = (store.create(name, {}, name) for name in "ab")
    assert store.latest(run) == {}
    for number in range(1, 6):
        sent = {"up/bytes": Metric(10.0, {"a": 10.0}), "seconds": Metric(0.5), "zeta": Metric(math.nan)}
        evaluated = {"central/accuracy": Metric(number / 10)} if number % 2 == 0 else {}
        store.commit(run, [RoundRecord(number, sent | evaluated)])
        store.commit(other, [RoundRecord(number, {"up/bytes": Metric(1.0), "beta": Metric(2.0)})])
    assert store.latest(other) == {"up/bytes": 5.0, "beta": 2.0}
    found = store.latest(run)
    assert math.isnan(found.pop("zeta"))
    assert found == {"central/accuracy": 0.4, "up/bytes": 50.0, "seconds": 2.5}
    store._db.execute("UPDATE metrics SET value = 0.9 WHERE metric = 'central/accuracy' AND round = 4")
    with pytest.raises(InputError, match="damaged"):
        store.latest(run)


def test_runs_are_found_by_id_prefix_or_last(store: RunStore):
    first, second = store.create("digits", {}, ""), store.create("fashion", {}, "")
    assert store.info("dig").id == first
    assert store.info("last").id == store.info(second).id == second
    third = store.create("digits", {}, "")
    with pytest.raises(InputError, match="could be any of"):
        store.info("digits")
    with pytest.raises(InputError, match=f"did you mean '{third}'"):
        store.info(third.replace("digits", "digts"))
    store.commit(first, [record(0, accuracy=1.0)])
    with pytest.raises(InputError, match="no metric 'acuracy': did you mean 'accuracy'"):
        store.series(first, "acuracy")
    with pytest.raises(InputError, match="unknown status"):
        store.commit(first, [], status="done")


def test_an_empty_store_says_so(store: RunStore):
    with pytest.raises(InputError, match="holds no runs yet"):
        store.info("last")


def test_one_process_at_a_time_works_on_a_run(store: RunStore):
    run = store.create("x", {}, "print")
    assert store.info(run).status == "interrupted"
    code = "import sys; from parley.store.runs import RunStore; s = RunStore(sys.argv[1]); s.claim(sys.argv[2]);"
    other = process(code + "print('claimed', flush=True); input()", store.path, run, stdin=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == "claimed\n"
    assert store.info(run).status == "running"
    assert store.unfinished("print") is None
    with pytest.raises(InputError, match="another process"):
        store.claim(run)
    with pytest.raises(InputError, match="another process"):
        store.delete(run)
    other.kill()
    other.communicate()
    assert store.info(run).status == "interrupted"
    assert store.unfinished("print") == run
    store.commit(run, [], status="stopped")
    store.claim(run)
    assert store.info(run).status == "running"
    with RunStore(store.path) as second, pytest.raises(InputError, match="another process"):
        second.claim(run)
    store.release(run)
    store.commit(run, [RoundRecord(5, {})], status="finished")
    assert store.unfinished("print") is None
    assert store.unfinished("print", rounds=5) is None
    assert store.unfinished("print", rounds=6) == run


def test_a_claim_that_comes_to_nothing_changes_nothing(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    run = store.create("x", {"rounds": 1}, "print")
    store.commit(run, [record(0)], status="stopped")
    store.claim(run)
    assert store.info(run).status == "running"
    store.release(run)  # as where a run turns out not to be resumable
    assert store.info(run).status == "stopped"
    with pytest.raises(TypeError):
        store.claim(run, {"rounds": object()})
    with monkeypatch.context() as patch:
        patch.setattr(store, "_change", lambda *_, **__: store._db.execute("SELECT nothing"))
        with pytest.raises(InputError):
            store.claim(run, {"rounds": 2})
    assert (store.info(run).status, store.info(run).config) == ("stopped", {"rounds": 1})
    store.claim(run, {"rounds": 2})  # nobody holds it
    assert (store.info(run).status, store.info(run).config) == ("running", {"rounds": 2})
    store.commit(run, [record(1)])
    store.release(run)
    assert store.info(run).status == "interrupted"


def test_a_run_deleted_while_it_is_being_claimed_is_gone(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    run = store.create("x", {}, "")
    acquire = locks.acquire

    def late(path: Path) -> bool:
        with RunStore(store.path) as other:
            monkeypatch.setattr(locks, "acquire", acquire)
            other.delete(run)
        return acquire(path)

    monkeypatch.setattr(locks, "acquire", late)
    with pytest.raises(InputError, match="there is no run"):
        store.claim(run)
    assert not locks.is_locked(store.path.parent / "artefacts" / run / "lock")


def test_a_forked_worker_does_not_keep_the_claim(store: RunStore):
    """A worker that outlives its killed parent must not block resuming."""
    run = store.create("x", {}, "")
    code = """
import os, sys, time
from parley.store.runs import RunStore
store = RunStore(sys.argv[1])
store.claim(sys.argv[2])
if os.fork() == 0:
    time.sleep(20)
print("claimed", flush=True)
time.sleep(20)
"""
    parent = process(code, store.path, run, start_new_session=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "claimed\n"
    parent.kill()
    parent.wait()
    store.claim(run)
    os.killpg(parent.pid, signal.SIGKILL)
    parent.communicate()


@pytest.mark.parametrize("moment", range(4))
def test_another_process_may_make_the_tables_at_any_moment(tmp_path: Path, moment: int):
    path = tmp_path / "runs.db"
    database.open_to_write(path).execute("PRAGMA journal_mode = WAL").connection.close()
    db, left = database.open_to_write(path), [moment]

    def another(_: str) -> None:
        if left[0] == 0:
            schema.connect(path, create=True).close()
        left[0] -= 1

    db.set_trace_callback(another)
    assert schema._version(db, path) in (0, schema.VERSION)
    db.close()


_WRITER = """
import sys
from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore
store = RunStore(sys.argv[1])
run = store.create(sys.argv[2], {}, "")
store.claim(run)
print(run, flush=True)
for n in range(int(sys.argv[3])):
    values = {str(c): c + n / 7 for c in range(30)}
    store.commit(run, [RoundRecord(n, {m: Metric(n / 7, values) for m in "abcd"})], checkpoint={"round": n})
store.commit(run, [], status="finished")
store.close()
"""


def test_processes_write_two_runs_at_once(tmp_path: Path):
    writers = [process(_WRITER, tmp_path / "new" / "runs.db", name, 60) for name in ("one", "two", "three")]
    runs = [writer.communicate()[0].strip() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    with RunStore(tmp_path / "new" / "runs.db") as store:
        for run in runs:
            assert [record.number for record in store.records(run)] == list(range(60))
            assert store.info(run).status == "finished"


def test_a_killed_writer_leaves_a_readable_store(tmp_path: Path):
    path = tmp_path / "runs.db"
    delays = random.Random(0)
    for attempt in range(4):
        writer = process(_WRITER, path, f"run{attempt}", 1_000_000)
        assert writer.stdout is not None
        run = writer.stdout.readline().strip()
        time.sleep(delays.uniform(0.01, 0.2))
        writer.kill()
        writer.communicate()
        with RunStore(path) as store:
            assert store.info(run).status == "interrupted"
            records = store.records(run)
            assert [record.number for record in records] == list(range(len(records)))
            assert all(set(record.metrics) == set("abcd") for record in records)
            checkpoint = store.checkpoint(run)
            assert checkpoint == ((len(records) - 1, {"round": len(records) - 1}) if records else None)
            assert len(store.runs()) == attempt + 1
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


def test_threads_share_a_store(store: RunStore):
    run = store.create("x", {}, "")
    threads = [threading.Thread(target=lambda n=n: store.commit(run, [record(n)])) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [r.number for r in store.records(run)] == list(range(8))


def test_files_that_are_not_stores(tmp_path: Path):
    text = tmp_path / "text.db"
    text.write_text("this is no database, though it is long enough to look at its first page\n" * 40)
    with pytest.raises(InputError, match="is not a run store"):
        RunStore(text)
    assert text.read_text().startswith("this is no database")

    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE other (x)")
    db.close()
    with pytest.raises(InputError, match="another program"):
        RunStore(foreign)

    newer = tmp_path / "newer.db"
    RunStore(newer).close()
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(InputError, match="newer Parley"):
        RunStore(newer)
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 2")
    db.close()
    with pytest.raises(InputError, match="has format 2"):
        RunStore(newer)

    with pytest.raises(InputError, match="there is no run store"):
        RunStore(tmp_path / "none" / "runs.db", create=False)
    assert not (tmp_path / "none").exists()
    with pytest.raises(InputError, match="cannot be made"):
        RunStore(text / "runs.db")


def test_a_damaged_store_says_so(tmp_path: Path):
    path = tmp_path / "runs.db"
    with RunStore(path) as store:
        run = store.create("x", {}, "")
        store.commit(run, [record(n, a=1.0, b=2.0) for n in range(200)])
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged"), RunStore(path) as store:
        store.records(run)


def test_a_store_that_cannot_be_written_says_so(store: RunStore):
    run = store.create("x", {}, "")
    store._db.execute("PRAGMA query_only = ON")
    with pytest.raises(InputError, match="cannot be written"):
        store.commit(run, [record(0)])


def test_deleting_takes_the_artefacts_along(store: RunStore):
    run = store.create("x", {}, "")
    store.commit(run, [record(0)], checkpoint={})
    (store.folder(run) / "model.safetensors").write_bytes(b"...")
    store.delete(run)
    assert store.runs() == []
    assert not (store.path.parent / "artefacts" / run).exists()
    with sqlite3.connect(store.path) as db:
        for table in ("rounds", "metrics", "failures", "checkpoints"):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    db.close()


def test_the_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    assert store_path() == Path("parley-runs/runs.db")
    monkeypatch.setenv("PARLEY_STORE", str(tmp_path))
    assert store_path() == tmp_path / "runs.db"
    assert store_path("mine.db") == Path("mine.db")


def test_hundreds_of_long_runs_stay_quick(store: RunStore):
    """200 runs of 500 rounds with 8 metrics, packed with 20 clients each."""
    clients = {f"client-{c}": c / 7 for c in range(20)}
    metrics = {f"metric/{m}": Metric(0.5, clients) for m in range(8)}
    records = [RoundRecord(n, metrics) for n in range(500)]
    first = store.create("first", {}, "")
    began = time.process_time()
    store.commit(first, records)
    writing = time.process_time() - began
    others = [f"run-{number}" for number in range(2, 201)]
    with store._writing():  # the other runs are copies, to keep the test short
        for number, other in enumerate(others, 2):
            row = (other, *store._db.execute("SELECT * FROM runs").fetchone()[2:-1])
            values = (number, *row, checksum(*row))
            store._db.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(values))})", values)
            for table in ("rounds", "metrics"):
                columns = [name for _, name, *_ in store._db.execute(f"PRAGMA table_info({table})")][1:]
                store._db.execute(
                    f"INSERT INTO {table} SELECT ?, {', '.join(columns)} FROM {table} WHERE run = 1", (number,)
                )
    began = time.process_time()
    runs = store.runs()
    listing = time.process_time() - began
    began = time.process_time()
    for info in runs:
        rounds, _ = store.series(info.id, "metric/3")
        assert len(rounds) == 500
    series = time.process_time() - began
    began = time.process_time()
    assert len(store.records(others[100])) == 500
    reading = time.process_time() - began
    print(f"write {writing:.3f} s, list {listing:.3f} s, 200 series {series:.3f} s, one run {reading:.3f} s")
    assert len(runs) == 200
    assert listing < 0.5
    assert series < 3.0
    assert reading < 2.0


def test_an_interrupt_right_after_a_transaction_began_does_no_harm(store: RunStore):
    run = store.create("x", {}, "print")
    store._db.execute("BEGIN IMMEDIATE")  # what an interrupt in the wrong place leaves behind
    store._db.execute("DELETE FROM runs")
    store.commit(run, [RoundRecord(1, {"loss": Metric(0.5)})], status="interrupted")
    assert store.info(run).rounds == 1


def test_curves_in_one_piece_are_the_rows(tmp_path: Path):
    """What a finished run keeps for reports is what its rows say, and goes as soon as a round changes."""
    rows = [
        RoundRecord(
            n,
            {"loss": Metric(float("nan") if n == 2 else 1.0 / (n + 1), {"a": 1.0, "b": 2.0})}
            | ({"up/bytes": Metric(5.0)} if n else {}),
            (Failure("b", "was away."),) if n == 3 else (),
        )
        for n in range(5)
    ]
    with RunStore(tmp_path / "runs.db") as store:
        run = store.create("a", {}, "f")
        store.commit(run, rows[:4])
        piecewise = store.curves(run)
        store.commit(run, [], status="finished", summary={})
        assert store._db.execute("SELECT count(*) FROM curves").fetchone() == (1,)
        for found in (piecewise, store.curves(run)):
            assert {name: rounds.tolist() for name, (rounds, _) in found.items()} == {
                "loss": [0, 1, 2, 3],
                "up/bytes": [1, 2, 3],
            }
            np.testing.assert_array_equal(found["loss"][1], [1.0, 0.5, np.nan, 0.25])
        assert list(store.curves(run, ["loss", "nothing"])) == ["loss"]
        assert store.metric_names(run) == ["loss", "up/bytes"]
        assert [one.client for one in store.failures(run)] == ["b"]
        store.commit(run, rows[4:])
        assert store._db.execute("SELECT count(*) FROM curves").fetchone() == (0,)
        assert store.curves(run)["loss"][0].tolist() == [0, 1, 2, 3, 4]
        store.commit(run, [], status="stopped")
        store.rewind(run, 1)
        assert store.curves(run)["loss"][0].tolist() == [0, 1]
        store.commit(run, [], status="finished")
        with store._writing():
            store._db.execute("UPDATE curves SET packed = zeroblob(length(packed))")
        with pytest.raises(InputError, match="curves is not as it was written"):
            store.curves(run)

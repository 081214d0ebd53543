"""Stores that cannot be written are read; stores that are made are their user's own."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from parley.core.errors import InputError
from parley.store.records import Failure, Metric, RoundRecord
from parley.store.runs import RunStore

NOBODY = 65534
READ = """
import os, sys, urllib.parse
from pathlib import Path
import parley.store.records  # before the checkout, and Python's own modules, are perhaps out of reach
from parley.store.runs import RunStore
if os.getuid() == 0:
    os.setgroups([])
    os.setgid({nobody})
    os.setuid({nobody})  # who is not root already is bound by modes
with RunStore(sys.argv[1], create=False) as store:
    (info,) = store.runs()
    print(info.id == store.info("last").id, info.status, len(store.records(info.id)), store.failures(info.id)[0].client)
    print(store.series(info.id, "loss")[1].sum(), store.checkpoint(info.id)[0], store.folder(info.id).is_dir())
    store.export_csv(info.id, sys.argv[2])
    for change in (lambda: store.create("x", {{}}, ""), lambda: store.claim(info.id), lambda: store.delete(info.id)):
        try:
            change()
        except Exception as error:
            print(type(error).__name__, "cannot be" in str(error))
"""
EXPECTED = "True finished 3 b\n1.5 2 True\n" + 3 * "InputError True\n"


def filled(path: Path) -> RunStore:
    store = RunStore(path)
    run = store.create("x", {"rounds": 3}, "")
    for n in range(3):
        record = RoundRecord(n, {"loss": Metric(0.5, {"a": 1.0})}, (Failure("b", "too slow"),))
        store.commit(run, [record], checkpoint={"round": n}, status="finished")
    store.folder(run)
    return store


def open_up(folder: Path, files: int, folders: int) -> None:
    """Modes as a colleague's store may have them."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(folders if path.is_dir() else files)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that others may enter, unlike pytest's."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o777)
    return tmp_path / "out" / "run.csv"


def read(path: Path, out: Path) -> str:
    """What a user who may only read sees."""
    command = [sys.executable, "-c", READ.format(nobody=NOBODY), str(path), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert out.read_text().count("\n") == 7
    return done.stdout


@pytest.mark.parametrize("live", [False, True], ids=["closed", "with a log"])
@pytest.mark.parametrize("folders", [0o555, 0o777], ids=["folder", "file"])
def test_without_permission_to_write(tmp_path: Path, out: Path, live: bool, folders: int):
    """The log of a store that is open, or whose process was killed, counts too."""
    with filled(tmp_path / "live" / "runs.db") as store:
        if live:
            shutil.copytree(tmp_path / "live", tmp_path / "store")
            (tmp_path / "store" / "runs.db-shm").unlink()
        store.close()
        if not live:
            shutil.copytree(tmp_path / "live", tmp_path / "store")
    open_up(tmp_path / "store", 0o444, folders)
    assert (tmp_path / "store" / "runs.db-wal").exists() == live
    before = sorted(entry.name for entry in (tmp_path / "store").iterdir())
    assert read(tmp_path / "store" / "runs.db", out) == EXPECTED
    if folders == 0o555:
        assert sorted(entry.name for entry in (tmp_path / "store").iterdir()) == before


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "mount"
    place.mkdir()
    (tmp_path / "store").mkdir()
    for command in (["mount", "--bind", tmp_path / "store", place], ["mount", "-o", "remount,ro,bind", place]):
        done = subprocess.run([str(word) for word in command], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"this machine allows no bind mounts ({done.stderr.decode().strip()})")
    yield place
    subprocess.run(["umount", str(place)], check=False, capture_output=True)


def test_on_a_disk_mounted_to_be_read(tmp_path: Path, out: Path, mount: Path):
    with filled(tmp_path / "store" / "runs.db"):  # open, so that there is a log
        open_up(tmp_path / "store", 0o644, 0o755)
        assert read(mount / "runs.db", out) == EXPECTED
    assert read(mount / "runs.db", out) == EXPECTED
    with RunStore(mount / "runs.db") as store, pytest.raises(InputError, match="cannot be written"):
        store.create("x", {}, "")
    with pytest.raises(InputError, match=r"cannot be made|cannot be opened"):
        RunStore(mount / "new" / "runs.db")


def test_a_store_in_a_folder_that_is_closed_is_one_sentence(tmp_path: Path):
    with filled(tmp_path / "closed" / "runs.db"):
        pass
    code = "import os, sys; from parley.cli.main import main; import parley.cli.runs, parley.study.seeds; "
    code += "os.setuid(65534); main(['runs', '--store', sys.argv[1]])"
    command = [sys.executable, "-c", code, str(tmp_path / "closed" / "runs.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cannot be reached: Permission denied" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_made_is_its_user_s_own(lab, tmp_path: Path):
    before = os.umask(0)
    try:
        lab.train("scaffold", tmp_path / "new" / "store" / "runs.db")
        with RunStore(tmp_path / "new" / "store" / "runs.db") as store:
            store.claim("last")
            made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
            modes = {path.name: path.stat().st_mode & 0o777 for path in made}
    finally:
        os.umask(before)
    assert {"runs.db", "runs.db-wal", "artefacts", "lock", "memory", "records", "index.db"} < modes.keys()
    assert {modes[path.name] for path in made if path.is_dir()} == {0o700}
    assert {modes[path.name] for path in made if path.is_file()} == {0o600}


def test_an_existing_folder_keeps_its_mode(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o755)
    RunStore(tmp_path / "mine" / "runs.db").close()
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o755


def test_a_reader_sees_one_moment(tmp_path: Path):
    """A store that is written while it is read is not taken for damaged."""
    path = tmp_path / "runs.db"
    with filled(path) as store, RunStore(path) as reader:
        run = store.info("last").id
        with reader._reading():
            count = reader._db.execute("SELECT count(*) FROM rounds").fetchone()
            store.commit(run, [RoundRecord(3, {"loss": Metric(1.0)})])
            assert reader._db.execute("SELECT count(*) FROM rounds").fetchone() == count
        assert len(reader.records(run)) == 4
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (3,)

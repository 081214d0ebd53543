"""Commands on a store with a byte changed: what they say is one sentence, and `doctor` reports it."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from parley.cli.main import main

STUDY = """
rounds = 3
[data]
folder = "{folder}/clients"
[model]
name = "linear"
[algorithm]
name = "fedavg"
"""
COMMANDS = (
    ("runs",),
    ("compare", "--out", "compared.csv"),
    ("report", "--out", "report.html"),
    ("doctor",),
    ("run", "study.toml", "--resume", "--quiet", "--rounds", "4"),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study and a store of two finished runs, all of it in one file."""
    folder = tmp_path_factory.mktemp("sound")
    (folder / "study.toml").write_text(STUDY.format(folder=folder))
    (folder / "clients").mkdir()
    for i in range(3):
        rows = "\n".join(f"{row},{row + i},{row % 2}" for row in range(10))
        (folder / "clients" / f"site{i}.csv").write_text(f"a,b,label\n{rows}\n")
    for seed in range(2):
        with pytest.raises(SystemExit) as ended:
            main(["run", f"{folder}/study.toml", "--set", f"seed={seed}", "--store", f"{folder}/runs.db", "--quiet"])
        assert not ended.value.code
    with closing(sqlite3.connect(folder / "runs.db")) as db:
        db.execute("PRAGMA journal_mode = DELETE").fetchall()
    return folder


@pytest.fixture
def copied(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`copied()` gives a fresh copy of the folder, which becomes the current one."""
    number = iter(range(10_000))

    def copy() -> Path:
        place = tmp_path / str(next(number))
        shutil.copytree(sound, place)
        monkeypatch.chdir(place)
        return place / "runs.db"

    return copy


def answered(parley, command: tuple[str, ...], path: Path) -> int:
    code, out, err = parley(*command, "--store", path)
    assert code in (0, 1, 2), (command, out, err)
    if code == 2:
        assert err.count("\n") == 1, err
        assert err.startswith("parley: "), err
        assert "runs.db" in err or "run '" in err, err
    if code == 1:
        assert command == ("doctor",)
        assert "\u2717 store" in out
    return code


def test_a_byte_that_is_no_text_in_the_schema(parley, copied):
    path = copied()
    data = path.read_bytes()
    place = data.index(b"CREATE TABLE rounds") + len("CREATE T")
    path.write_bytes(data[:place] + b"\xc4" + data[place + 1 :])
    for command in COMMANDS:
        assert answered(parley, command, path) == (1 if command == ("doctor",) else 2)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE metrics SET value = value + 1 WHERE metric = 'train/loss' AND round = 1",
        "UPDATE rounds SET committed = 0.5 WHERE round = 1",
        "UPDATE runs SET name = 'other'",
    ],
)
def test_a_finished_run_with_a_damaged_value_is_not_gone_on_with(parley, copied, damage: str):
    path = copied()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(damage)
        db.execute("DELETE FROM curves")
    code, _, err = parley(*COMMANDS[-1], "--store", path)
    assert code == 2
    assert err.count("\n") == 1
    assert f"the run store {path} is damaged" in err
    assert answered(parley, ("doctor",), path) == 1


def flipped(data: bytes, chance: random.Random) -> bytes:
    """With one to three bytes changed that say something."""
    changed = bytearray(data)
    for place in chance.choices([place for place, byte in enumerate(data) if byte], k=chance.choice((1, 1, 3))):
        changed[place] ^= chance.randrange(1, 256)
    return bytes(changed)


def fuzzed(parley, copied, seed: int, times: int) -> None:
    chance = random.Random(seed)
    for _ in range(times):
        path = copied()
        path.write_bytes(flipped(path.read_bytes(), chance))
        for command in COMMANDS:
            answered(parley, command, path)
        shutil.rmtree(path.parent)


def test_flipped_bytes(parley, copied):
    fuzzed(parley, copied, 0, 8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_many_flipped_bytes(parley, copied, seed: int):
    fuzzed(parley, copied, seed, 60)

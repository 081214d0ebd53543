"""Stores with bytes flipped, cut or gone, and rows removed: the same results as before, or one sentence."""

import random
import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from parley.core.errors import ParleyError
from parley.store.checkpoints import Checkpoints, expected_memories
from parley.store.memories import MEMORY, Memories
from parley.store.runs import RunStore


def content(path: Path) -> dict[str, object]:
    """Everything that can be read from a store, without training."""
    result: dict[str, object] = {}
    with RunStore(path, create=False) as store:
        for info in store.runs():
            found = store.checkpoint(info.id)
            if found is None:
                continue
            folder = store.folder(info.id)
            memories = Memories.stored(folder / MEMORY, found[0], expected_memories(found[1]))
            result[info.id] = {
                "info": info,
                "records": repr([asdict(record) for record in store.records(info.id)]),
                "failures": store.failures(info.id),
                "series": [store.series(info.id, name)[1].tolist() for name in store.metric_names(info.id)],
                "states": {
                    label: ({name: value.tolist() for name, value in state.tensors.items()}, state.scalars)
                    for label, state in Checkpoints(folder).load(found[1]).items()
                },
                "memories": {
                    client: {name: value.tolist() for name, value in memories[client].tensors.items()}
                    for client in ("c0", "c1", "c2", "c3", "c4")
                    if client in memories
                },
            }
            memories.close()
    return result


@pytest.fixture(scope="module", params=["local-only", "scaffold"])
def sound(request, lab, tmp_path_factory) -> tuple[str, Path, list[dict[str, object]]]:
    """A method, a store of its run after four rounds (with its log or without), and what may be read from it.

    A damaged log holds an earlier checkpoint, which is as good; one that is gone holds nothing.
    """
    folder = tmp_path_factory.mktemp("sound")
    lab.copies(request.param, folder)
    if request.param == "local-only":
        RunStore(folder / "4" / "runs.db").close()  # the log becomes part of the file
    moments = [folder / str(n) for n in range(5)]
    for moment in moments:
        shutil.copytree(moment, folder / "read" / moment.name)
    return request.param, moments[4], [{}, *(content(folder / "read" / str(n) / "runs.db") for n in range(5))]


def harm(folder: Path, chance: random.Random) -> str:
    """Do one kind of damage somewhere; says which."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock" and path.stat().st_size)
    path = chance.choices(files, [min(path.stat().st_size, 50_000) for path in files])[0]
    data, place = bytearray(path.read_bytes()), chance.randrange(path.stat().st_size)
    kind = chance.choice(["flip", "flip", "flip", "byte", "zeros", "noise", "cut", "gone", "row"])
    if kind == "flip":
        data[place] ^= 1 << chance.randrange(8)
    elif kind == "byte":
        data[place] = chance.randrange(256)
    elif kind in ("zeros", "noise"):
        length = min(chance.choice([8, 512, 4096]), len(data) - place)
        data[place : place + length] = bytes(length) if kind == "zeros" else chance.randbytes(length)
    elif kind == "cut":
        del data[place:]
    if kind == "gone":
        path.unlink()
    elif kind == "row":
        path = folder / "runs.db"
        with closing(sqlite3.connect(path)) as db, db, suppress(sqlite3.Error):
            table = chance.choice(["rounds", "metrics", "checkpoints"])
            db.execute(f"DELETE FROM {table} WHERE round = {chance.randrange(5)}")
    else:
        path.write_bytes(data)
    return f"{kind} at {place} of {path.name}"


def check(sound: tuple[str, Path, list[dict[str, object]]], lab, folder: Path, seed: int, resume: bool) -> bool:
    """Whether the damage left something to read."""
    method, source, allowed = sound
    shutil.copytree(source, folder / "read")
    what = f"seed {seed}: {harm(folder / 'read', random.Random(f'{method} {seed}'))}"
    shutil.copytree(folder / "read", folder / "resumed")
    found = None
    with suppress(ParleyError):
        found = content(folder / "read" / "runs.db")
    assert found is None or found in allowed, what
    if resume:
        result = lab.resume(method, folder / "resumed" / "runs.db")
        assert isinstance(result, str) or result == lab.whole(method), what
    shutil.rmtree(folder / "read")
    shutil.rmtree(folder / "resumed")
    return found is not None


def test_damage_of_many_kinds(sound, lab, tmp_path: Path):
    whole = [check(sound, lab, tmp_path, seed, resume=seed % 6 == 0) for seed in range(60)]
    assert 0 < sum(whole) < len(whole)  # some of it does no harm, some of it does


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_damage_of_many_more_kinds(sound, lab, tmp_path: Path, block: int):
    for seed in range(1000 + 50 * block, 1050 + 50 * block):
        check(sound, lab, tmp_path, seed, resume=True)

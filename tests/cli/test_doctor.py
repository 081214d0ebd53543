"""`parley doctor`: what is whole is called so, what is broken makes the exit code 1."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from parley.core.extras import how_to_install
from parley.report import installation
from parley.report.installation import examine
from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    return tmp_path


def store(path: Path) -> Path:
    with RunStore(path) as made:
        run = made.create("fedavg", {"rounds": 2}, "x")
        made.commit(run, [RoundRecord(n, {"central/accuracy": Metric(0.5)}) for n in range(3)], status="finished")
    return path


def test_a_machine_that_is_fit(parley, place: Path):
    store(place / "runs.db")
    code, out, _ = parley("doctor", "--store", "runs.db")
    assert code == 0, out
    for word in ("Python", "torch", "packages", "machine", "disk", "data sets", "browser"):
        assert word in out
    assert torch.__version__ in out
    assert "1 runs, 0 of them not finished, all readable" in out


def test_a_store_that_is_not_there_yet_is_no_trouble(parley):
    code, out, _ = parley("doctor")
    assert code == 0
    assert "does not exist yet" in out


@pytest.mark.parametrize("damage", ["text", "row", "page"])
def test_a_damaged_store_is_broken(parley, place: Path, damage: str):
    path = store(place / "runs.db")
    if damage == "text":
        path.write_bytes(b"no database at all")
    elif damage == "row":
        import sqlite3

        with sqlite3.connect(path) as db:
            db.execute("UPDATE metrics SET value = 0.75 WHERE round = 1")
        db.close()
    else:
        data = bytearray(path.read_bytes())
        data[4096 : 2 * 4096] = b"\xff" * 4096
        path.write_bytes(bytes(data))
    code, out, _ = parley("doctor", "--store", path)
    assert code == 1
    assert "✗ store" in out
    assert "1 broken" in out


def test_missing_packages_are_named_with_the_way_to_get_them(monkeypatch: pytest.MonkeyPatch):
    def version(name: str) -> str:
        if name in ("lightgbm", "rich"):
            raise PackageNotFoundError(name)
        return "0.0.1" if name == "scipy" else known(name)

    known = installation.version
    monkeypatch.setattr(installation, "version", version)
    found = {finding.subject: finding for finding in examine()}
    assert found["packages"].state == "broken"
    assert "rich is not installed" in found["packages"].text
    assert "scipy>=1.12 is wanted, 0.0.1 installed" in found["packages"].text
    assert found["extra trees"].state == "note"
    assert found["extra trees"].text == f"lightgbm is not installed: {how_to_install('trees')}"
    assert found["extra transport"].state == "ok"


def test_torch_that_cannot_compute_is_broken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "ones", lambda *_: torch.zeros(8, 8))
    assert {finding.subject: finding.state for finding in examine()}["torch"] == "broken"

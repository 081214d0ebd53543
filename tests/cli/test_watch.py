"""`parley watch` sees what another process trains, and ends when that ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore

STUDY = """
rounds = 4
listeners = ["slow.py:Slow"]
[data]
name = "iris"
clients = 4
[model]
name = "linear"
[algorithm]
name = "fedavg"
[store]
checkpoint = 0.0
"""
SLOW = """
import time
import parley as pl
class Slow(pl.Listener):
    def round(self, record):
        time.sleep(0.7)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


def test_a_run_of_another_process_is_followed_to_its_end(parley, place, monkeypatch):
    monkeypatch.setattr("parley.display.progress.QUIET", 0.1)
    monkeypatch.setattr("parley.report.watch.GRACE", 0.5)
    call = [sys.executable, "-c", "from parley.cli.main import main; main(['run', 'study.toml', '-q'])"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as child:
        while not (place / "parley-runs" / "runs.db").exists() or "running" not in parley("runs")[1]:
            assert child.poll() is None
        code, out, _ = parley("watch")
        run = child.communicate()[0].strip()
    assert code == 0
    rounds = [int(line.split("round ")[1].split("/")[0]) for line in out.splitlines() if "round " in line]
    assert rounds == sorted(rounds)
    assert len(set(rounds)) > 1
    assert "round 4/4" in out
    assert "finished" in out
    code, out, _ = parley("watch")
    assert (code, out) == (0, f"nothing is running; the newest run is {run} (finished).\n")
    assert "round 4/4" in parley("watch", "last")[1]
    code, _, err = parley("watch", "nobody")
    assert code == 2
    assert err.count("\n") == 1


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf"])
def test_a_time_to_watch_that_is_none_is_refused(parley, place, seconds):
    with RunStore(place / "runs.db") as store:
        store.create("a", {"rounds": 4}, "a")
    code, out, err = parley("watch", "last", "--seconds", seconds, "--store", place / "runs.db")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"not {seconds}" in err


def test_a_killed_run_shows_its_last_numbers(parley, place):
    with RunStore(place / "runs.db") as store:
        run = store.create("a", {"rounds": 9}, "a")
        numbers = {"central/accuracy": Metric(0.5), "up/bytes": Metric(1e6), "seconds": Metric(2.0)}
        store.commit(run, [RoundRecord(n, numbers) for n in range(4)])
    assert "interrupted 3/9 accuracy 50.00% 4 8.0" in " ".join(parley("runs", "--store", place / "runs.db")[1].split())
    shown = " ".join(parley("runs", "show", "last", "--store", place / "runs.db")[1].split())
    assert "central/accuracy 50.00% MB up 4" in shown

"""What `parley bench --all` writes, and the page that is made from it."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

from parley.cli.main import main
from parley.core.errors import InputError
from parley_benchmarks.harness import Lap
from parley_benchmarks.record import record, recorded
from parley_benchmarks.result import summarise
from parley_benchmarks.roster import Entrant
from parley_benchmarks.run import default_workloads
from parley_benchmarks.workloads import WORKLOADS

DOCS = Path(__file__).parents[2] / "docs"
MADE = runpy.run_path(str(DOCS / "make_bench.py"))
START, END = {"w": torch.zeros(2)}, {"w": torch.tensor([3.0, 4.0])}


def lap(name: str, seconds: list[float]) -> Lap:
    versions = {"python": "3.11", "torch": "2.13.0", name.split()[0]: "1.0"}
    return Lap(Entrant(name, name.split()[0], name), versions, 1.0, seconds, seconds, END, END, 0)


def written() -> dict[str, object]:
    laps = [lap("parley", [1.0, 2.0, 1.0]), lap("plain", [4.0, 4.0, 5.0]), lap("pfl 1x1", [5.0, 6.0, 7.0])]
    laps[2].final = {"w": torch.tensor([3.0, 4.005])}
    return record([summarise(WORKLOADS["LR-MNIST"], "full", laps, START)])


def test_times_are_ratios_of_the_same_chunks():
    (workload,) = written()["workloads"]  # type: ignore[misc]
    parley, plain, pfl = workload["standings"]
    assert (parley["times"], parley["versions"]) == (None, {"parley": "1.0"})
    assert (plain["low"], plain["times"], plain["high"]) == (2.0, 4.0, 5.0)
    assert pfl["final_difference"] == pytest.approx(1e-3, rel=1e-4)


def test_nothing_of_the_machine_but_cores_and_memory_is_kept():
    (workload,) = written()["workloads"]  # type: ignore[misc]
    assert set(workload["machine"]) == {"cores", "memory_gb", "python", "torch"}


def test_what_did_not_run_again_stays_as_it_was(tmp_path: Path):
    file = tmp_path / "bench.json"
    assert recorded(file) is None
    earlier = written()
    for one in earlier["workloads"]:  # type: ignore[attr-defined]
        one["date"] = "2026-01-02"
    file.write_text(json.dumps(earlier))
    laps = [lap("parley", [1.0, 1.0]), lap("hand", [0.5, 0.5])]
    crowd = summarise(WORKLOADS["CROWD"], "full", laps, START)
    file.write_text(json.dumps(record([crowd], "parley bench CROWD", recorded(file))))
    shown = MADE["section"](file)
    assert "2026-01-02, `parley bench --all`" in shown
    assert shown.index("GB: LR-MNIST.") < shown.index("`parley bench CROWD`") < shown.index("GB: CROWD.")
    again = record(
        [summarise(WORKLOADS["LR-MNIST"], "full", [*laps, lap("plain", [3.0, 3.0])], START)], "", recorded(file)
    )
    names = {one["name"]: one["date"] for one in again["workloads"]}
    assert list(names) == ["LR-MNIST", "CROWD"]
    assert "2026-01-02" not in names.values()
    for text in ("{", "[]", '{"workloads": [{"name": 1}]}'):
        file.write_text(text)
        with pytest.raises(InputError, match="holds no record"):
            recorded(file)


def test_the_page_shows_ratios_versions_and_agreement(tmp_path: Path):
    file = tmp_path / "bench.json"
    assert "Nothing has been recorded" in MADE["section"](file)
    file.write_text(json.dumps(written()))
    shown = MADE["section"](file)
    assert "| LR-MNIST | 1 | plain | plain 1.0 | 4.00 (2.00 to 5.00) | 0e+00 |" in shown
    assert "| LR-MNIST | parley is at least 4x as fast as pfl | 5 | 3 to 7 | holds |" in shown
    assert "smoke" not in shown
    assert " ms" not in shown


def test_rows_of_new_contestants_are_shown(tmp_path: Path):
    laps = [lap("parley", [1.0, 1.0]), lap("hand", [0.8, 0.6]), lap("jax", [0.5, 0.5]), lap("jax resident", [0.4, 0.2])]
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(record([summarise(WORKLOADS["CROWD"], "full", laps, START)])))
    shown = MADE["section"](file)
    assert "| CROWD | 1 | jax resident | jax 1.0 | 0.30 (0.20 to 0.40) | 0e+00 |" in shown
    assert "| CROWD | parley is at least 0.5x as fast as hand | 0.7 | 0.6 to 0.8 | holds |" in shown


@pytest.mark.long
def test_named_workloads_can_be_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "crowd.json"
    words = ["crowd", "--scale", "smoke", "--only", "parley", "--only", "hand", "--only", "plain"]
    with pytest.raises(SystemExit) as ended:
        main(["bench", *words, "--write", str(file)])
    assert not ended.value.code
    capsys.readouterr()
    read = json.loads(file.read_text())
    assert read["workloads"][0]["command"] == "parley bench crowd --only parley --only hand --only plain"
    assert [one["name"] for one in read["workloads"][0]["standings"]] == ["parley", "hand", "plain"]
    assert all(one["final_difference"] < 1e-4 for one in read["workloads"][0]["standings"])


def test_everything_takes_no_names(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    for words in (
        ["LR-MNIST", "--all"],
        ["--all", "--only", "pfl"],
        ["--all", "--write", str(tmp_path / "no" / "b.json")],
    ):
        with pytest.raises(SystemExit) as ended:
            main(["bench", *words])
        assert ended.value.code == 2
        capsys.readouterr()
    assert "SCAFFOLD-100K" not in default_workloads()


@pytest.mark.slow
def test_everything_at_smoke_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "bench.json"
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--all", "--scale", "smoke", "--no-install", "--write", str(file)])
    assert not ended.value.code
    capsys.readouterr()
    read = json.loads(file.read_text())
    assert [workload["name"] for workload in read["workloads"]] == default_workloads()
    assert "At scale smoke, which measures nothing" in MADE["section"](file)

"""The demo: it trains, stores, writes and concludes what the numbers say, whichever way they point."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import parley as pl
from parley.report import Comparison, Contender
from parley.report.contender import Role
from parley.store.records import Metric, RoundRecord
from parley.studies.demo import METHODS, demo
from parley.studies.demo_summary import conclusions, ranking_noise


def contender(label: str, accuracies: list[float], role: Role = "federated") -> Contender:
    records = [
        RoundRecord(n, {"central/accuracy": Metric(a), "up/bytes": Metric(1e6), "seconds": Metric(1.0)})
        for n, a in enumerate(accuracies)
    ]
    return Contender.of_records(label, records, role=role)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_demo_trains_stores_writes_and_says_where(tmp_path: Path, terminal: bool) -> None:
    out = io.StringIO()
    screen = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    with pl.RunStore(tmp_path / "runs.db") as store:
        comparison = demo(store, tmp_path / "demo", screen, rounds=2)
        assert [info.status for info in store.runs()] == ["finished"] * len(METHODS)
        again = Comparison.stored(store, [run.id for run in comparison.contenders])
    assert [line.last.value for line in again.lines] == [line.last.value for line in comparison.lines]
    assert [run.label for run in comparison.contenders] == list(METHODS)
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {
        "comparison.png", "comparison.csv", "comparison.json", "clients.png", "report.html", "study.toml",
    }  # fmt: skip
    text = out.getvalue()
    assert "comparison.png" in text
    assert "parley compare fedavg-" in text
    assert text.count("•") == 3
    assert ("\x1b" in text) == terminal


def test_the_written_study_is_the_one_that_was_trained(tmp_path: Path) -> None:
    with pl.RunStore(tmp_path / "runs.db") as store:
        demo(store, tmp_path / "demo", Console(file=io.StringIO()), rounds=1)
        stored = store.runs()[0].config
    study = pl.load_study(tmp_path / "demo" / "study.toml", ["rounds=1", "name=fedavg"])
    assert study.stored() == stored


def test_conclusions_follow_the_numbers() -> None:
    good = Comparison.of([
        contender("fedavg", [0.1, 0.7, 0.92]), contender("fedadam", [0.1, 0.9, 0.93]),
        contender("local-only", [0.1, 0.2, 0.3], "alone"), contender("centralised", [0.1, 0.9, 0.99], "pooled"),
    ])  # fmt: skip
    joining, pooling, speed = conclusions(good, tested=400)
    assert joining.startswith("Joining pays: a client's own model gets 30.0%")
    assert "fedadam 93.0%" in joining
    assert pooling.startswith("Keeping the data apart costs 6.0 points")
    assert "fedadam took 1 round and" in speed
    assert "fedavg 2 rounds" in speed
    assert speed.endswith("fedadam and fedavg are too close for 400 test samples to rank.")


def test_conclusions_when_it_goes_the_other_way() -> None:
    bad = Comparison.of([
        contender("fedavg", [0.1, 0.5]), contender("fedadam", [0.1, 0.1]),
        contender("local-only", [0.1, 0.8], "alone"), contender("centralised", [0.1, 0.51], "pooled"),
    ])  # fmt: skip
    joining, pooling, speed = conclusions(bad, tested=400)
    assert joining.startswith("Joining does not pay here")
    assert pooling.startswith("Keeping the data apart costs little")
    assert "fedadam did not get there" in speed
    assert speed.endswith("fedavg leads by more than the noise of 400 test samples.")
    unreached = Comparison.of([contender("fedavg", [0.1, 0.5])], target=0.9)
    assert conclusions(unreached, 400) == ["None of the federated methods reached 90.0%. It ended at 50.0%."]


def test_noise_is_two_standard_errors_of_a_difference() -> None:
    assert ranking_noise(0.5, 200) == pytest.approx(2 * (2 * 0.25 / 200) ** 0.5)
    assert ranking_noise(1.0, 200) == 0.0


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pl.RunStore(tmp_path / "runs.db") as store, pytest.raises(pl.InputError, match="cannot be made"):
        demo(store, tmp_path / "file" / "demo", Console(file=io.StringIO()))

"""The demo: it trains, stores, writes and concludes what the numbers say, whichever way they point."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from rich.console import Console

import parley as pl
from parley.advise.gain.result import ClientGain, Decision
from parley.advise.gain.stop import StopAdvice
from parley.demo.run import METHODS, demo
from parley.demo.summary import NTK, conclusions, ranking_noise
from parley.report import Comparison, Contender
from parley.report.groups import Role
from parley.store.records import Metric, RoundRecord


class Shown(NamedTuple):
    folder: Path
    store: pl.RunStore
    comparison: Comparison
    text: str


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    place = tmp_path_factory.mktemp("demo")
    out = io.StringIO()
    with pl.RunStore(place / "runs.db") as store:
        comparison = demo(store, place / "demo", Console(file=out, width=100), rounds=1)
        yield Shown(place / "demo", store, comparison, out.getvalue())


def test_the_demo_trains_stores_writes_and_says_where(shown: Shown) -> None:
    assert [info.status for info in shown.store.runs()] == ["finished"] * len(METHODS)
    again = Comparison.stored(shown.store, [run.id for run in shown.comparison.contenders])
    assert [line.last.value for line in again.lines] == [line.last.value for line in shown.comparison.lines]
    assert [run.label for run in shown.comparison.contenders] == list(METHODS)
    assert {path.name for path in shown.folder.iterdir()} == {
        "demo.png", "demo.csv", "demo.json", "gains.csv", "report.html", "study.toml",
    }  # fmt: skip
    assert "parley compare default-" in shown.text
    assert [line[:3] for line in shown.text.splitlines() if line[1:3] == ". "] == [f"{n}. " for n in range(1, 6)]


def test_the_page_has_the_sentences_the_figure_and_every_clients_gain(shown: Shown) -> None:
    page = (shown.folder / "report.html").read_text()
    assert page.index("Who should join:") < page.index("Overview")
    assert page.count("<li>") >= 5
    assert "sends the data" in page
    assert len((shown.folder / "gains.csv").read_text().splitlines()) == 51


def test_the_written_study_is_the_one_that_was_trained(shown: Shown) -> None:
    stored = next(info.config for info in shown.store.runs() if info.config["name"] == "fedavg")
    study = pl.load_study(shown.folder / "study.toml", ["rounds=1", "name=fedavg"])
    assert study.stored() == stored


def contender(label: str, last: float, megabytes: float, role: Role = "federated") -> Contender:
    records = [
        RoundRecord(n, {"central/accuracy": Metric(a), "up/bytes": Metric(5e5 * megabytes), "seconds": Metric(1.0)})
        for n, a in enumerate((0.1, last))
    ]
    return Contender.of_records(label, records, role=role)


def table_of(**changed: tuple[float, float]) -> Comparison:
    values = {
        "default": (0.80, 10.0), "advised": (0.95, 10.0), "fedavg": (0.93, 10.0), "fedals": (0.80, 5.0),
        "ffgb": (0.70, 8.0), "histogram-boosting": (0.90, 500.0), NTK: (0.99, 12.0),
    } | changed  # fmt: skip
    return Comparison.of([
        *(contender(label, *each) for label, each in values.items()),
        contender("local-only", 0.3, 0.0, "alone"), contender("centralised", 0.97, 0.0, "pooled"),
    ])  # fmt: skip


def gains_of(*decisions: Decision) -> pl.Gains:
    clients = [ClientGain(str(n), 30, 0.2, 0.1, 2.0, 1.5, 3.0, each) for n, each in enumerate(decisions)]
    return pl.Gains(tuple(clients), len(clients), "Brier score", 0.9, "", StopAdvice(5, ""))


def advice() -> pl.Advice:
    method = pl.FedAvg(lr=0.05, steps=7)
    stub: Any = SimpleNamespace(best=SimpleNamespace(algorithm=method), budget=lambda: "60 rounds")
    return cast(pl.Advice, stub)


def test_five_conclusions_follow_the_numbers() -> None:
    join, setting, method, traffic, others = conclusions(
        table_of(), 1000, gains_of("join", "join", "stay alone", "undecided"), advice()
    )
    assert "2 clients of 4 can be told to join and 1 to stay alone; 1 are undecided" in join
    assert "own model gets 30.0% right, advised 95.0%" in join
    assert "FedAvg with step size 0.05 and 7 local steps; it ended at 95.0%" in setting
    assert setting.endswith("at 80.0%: worth taking.")
    assert "All data in one place would get 97.0% (+2.0 points)" in method
    assert "sends 50% less than FedAvg (5.0 MB against 10.0 MB) and ends 13.0 points below it" in traffic
    assert traffic.endswith("take it only if traffic costs you more.")
    assert "NTK-FL gets 99.0%" in others
    assert "the server can read every sample" in others
    assert "FFGB, with 1 rounds, ends 25.0 points below advised" in others
    assert "sends 500 MB, 50 times as much" in others


def test_conclusions_when_it_goes_the_other_way() -> None:
    lost = table_of(advised=(0.60, 10.0), fedals=(0.99, 5.0), ffgb=(0.995, 8.0))
    _, setting, method, traffic, others = conclusions(lost, 1000, gains_of("undecided"), advice())
    assert setting.endswith("not worth taking here.")
    assert "of them fedals sends least, 5.0 MB" in method
    assert traffic.endswith("6.0 points above it: take it.")
    assert "ends level with ffgb" in others
    near = table_of(advised=(0.80, 10.0))
    assert "too close to tell with 100 test samples" in conclusions(near, 100, gains_of("join"), advice())[1]


def test_a_method_that_sends_the_data_is_never_the_best() -> None:
    join = conclusions(table_of(), 1000, gains_of("join"), advice())[0]
    assert "ntk-fl" not in join


def test_noise_is_two_standard_errors_of_a_difference() -> None:
    assert ranking_noise(0.5, 200) == pytest.approx(2 * (2 * 0.25 / 200) ** 0.5)
    assert ranking_noise(1.0, 200) == 0.0


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pl.RunStore(tmp_path / "runs.db") as store, pytest.raises(pl.InputError, match="cannot be made"):
        demo(store, tmp_path / "file" / "demo", Console(file=io.StringIO()))

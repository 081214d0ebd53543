"""The demo: it trains, stores, writes and concludes what the numbers say, whichever way they point."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from rich.console import Console

import parley as pl
from parley.advise.gain.result import ClientGain, Decision
from parley.advise.gain.stop import StopAdvice
from parley.demo.run import METHODS, demo, study_of
from parley.demo.summary import NTK, conclusions, median_interval, ranking_noise
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
        "demo.png",
        "demo.csv",
        "demo.json",
        "gains.csv",
        "report.html",
        "study.toml",
    }
    assert "parley compare default-" in shown.text
    assert [line[:3] for line in shown.text.splitlines() if line[1:3] == ". "] == [f"{n}. " for n in range(1, 6)]


def test_the_page_has_the_sentences_the_figure_and_every_clients_gain(shown: Shown) -> None:
    page = (shown.folder / "report.html").read_text()
    assert page.index("Who should join") < page.index("Overview")
    assert page.count("<li>") >= 5
    assert "sends the data" in page
    assert page.count('<figure><img alt="') >= 4
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
        "default": (0.80, 10.0),
        "advised": (0.95, 10.0),
        "fedavg": (0.93, 10.0),
        "fedals": (0.80, 5.0),
        "ffgb": (0.70, 8.0),
        "histogram-boosting": (0.90, 500.0),
        NTK: (0.99, 12.0),
    } | changed
    return Comparison.of(
        [
            *(contender(label, *each) for label, each in values.items()),
            contender("local-only", 0.3, 0.0, "alone"),
            contender("centralised", 0.97, 0.0, "pooled"),
        ]
    )


def gains_of(*decisions: Decision) -> pl.Gains:
    clients = [ClientGain(str(n), 30, 0.2, 0.1, 2.0 + n, 1.5, 9.0, each) for n, each in enumerate(decisions)]
    return pl.Gains(tuple(clients), len(clients), "Brier score", 0.9, "", StopAdvice(5, ""))


def advice() -> pl.Advice:
    method = pl.FedAvg(lr=0.05, steps=7)
    stub: Any = SimpleNamespace(best=SimpleNamespace(algorithm=method), budget=lambda: "60 rounds")
    return cast(pl.Advice, stub)


def test_five_conclusions_follow_the_numbers() -> None:
    join, setting, method, traffic, others = conclusions(
        table_of(), 1000, gains_of("join", "join", "stay alone", "undecided"), advice()
    )
    assert "err less than their own for 4 of 4 clients (median gain 3.5)." in join
    assert "2 should join, 1 should stay alone, 1 needs more samples." in join
    assert "own model gets 30.0% right, advised 95.0%" in join
    assert "FedAvg with step size 0.05 and 7 local steps; it ended at 95.0%" in setting
    assert "with default settings at 80.0%, both with 10.0 MB: worth taking." in setting
    assert setting.endswith("Settings tuned by trial end at 93.0%.")
    assert "All data in one place would get 97.0% (+2.0 points)" in method
    assert "sends 50% less than FedAvg (5.0 MB against 10.0 MB) and ends 13.0 points below it" in traffic
    assert traffic.endswith("take it only if traffic costs you more.")
    assert "NTK-FL (Yue et al.) gets 99.0%" in others
    assert "the server can read every sample" in others
    assert "FFGB (Shen et al.), with 1 rounds, ends 25.0 points below advised" in others
    assert "sends 500 MB, 50 times as much" in others


def test_conclusions_when_it_goes_the_other_way() -> None:
    lost = table_of(advised=(0.60, 10.0), fedals=(0.99, 5.0), ffgb=(0.995, 8.0))
    _, setting, method, traffic, others = conclusions(lost, 1000, gains_of("undecided"), advice())
    assert "not worth taking here." in setting
    assert "of them fedals sends least, 5.0 MB" in method
    assert traffic.endswith("6.0 points above it: take it.")
    assert "ends level with ffgb" in others
    near = table_of(advised=(0.80, 10.0))
    assert "too close to tell with 100 test samples" in conclusions(near, 100, gains_of("join"), advice())[1]


def test_the_group_is_answered_where_no_client_can_be() -> None:
    join = conclusions(table_of(), 1000, gains_of(*["undecided"] * 10), advice())[0]  # type: ignore[list-item]
    # Of ten draws, the second smallest and second largest enclose the median with 97.9%, the third ones with 89.1%.
    assert "as a group, yes: the federated model" in join
    assert "no client can be decided yet: all need more samples." in join
    assert "(median gain 6.5, 90% interval over clients 3.0 to 10.0)" in join


@pytest.mark.parametrize(("count", "level"), [(6, 0.9), (11, 0.9), (50, 0.9), (50, 0.95)])
def test_the_medians_interval_has_its_coverage_and_no_more(count: int, level: float) -> None:
    """The number of draws below the median is binomial: sums of its probabilities, without a distribution's help."""
    low, _ = median_interval([float(n) for n in range(count)], level)

    def coverage(below: int) -> float:
        return 1 - 2 * sum(math.comb(count, k) for k in range(below + 1)) / 2**count

    assert coverage(int(low)) >= level
    assert coverage(int(low) + 1) < level


def test_every_part_names_its_authors() -> None:
    text = " ".join(conclusions(table_of(), 1000, gains_of("join"), advice()))
    authors = ("Su et al.", "Charles and Konečný", "Shen et al.", "Yue et al.", "Gholami and Seferoglu")
    assert all(name in text for name in authors)


def test_the_advised_run_is_fedavg_for_the_traffic_of_the_default(shown: Shown) -> None:
    config = next(info.config for info in shown.store.runs() if info.config["name"] == "advised")
    assert config["algorithm"]["name"] == "fedavg"
    assert config["algorithm"]["server"] == study_of("default", METHODS["default"]).resolved()["algorithm"]["server"]
    assert config["evaluate"] == study_of("default", METHODS["default"]).resolved()["evaluate"]
    lines = {line.label: line for line in shown.comparison.lines}
    assert lines["advised"].megabytes == pytest.approx(lines["default"].megabytes)


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

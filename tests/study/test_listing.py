"""What a list shows of a run: the metric it is judged by, of one that goes on too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore
from parley.study.seeds import SILENT, Seen, entry, listing

NAMES = ("central/accuracy", "central/auc", "central/loss", "clients/auc", "train/loss", "up/bytes")


@pytest.mark.parametrize(
    ("evaluate", "names", "headline"),
    [
        (None, NAMES, "central/accuracy"),
        ({"metric": "auto", "headline": None}, NAMES, "central/accuracy"),
        ({"metric": "auc"}, NAMES, "central/auc"),
        ({"metric": "auto", "headline": "clients/auc"}, NAMES, "clients/auc"),
        ({"headline": "-central/loss"}, NAMES, "central/loss"),
        ({"headline": "train/loss"}, NAMES, "central/accuracy"),
        (None, ("central/loss", "up/bytes"), "central/loss"),
        (None, ("up/bytes",), ""),
    ],
)
def test_the_metric_shown_is_what_the_run_is_judged_by(
    tmp_path: Path, evaluate: Any, names: tuple[str, ...], headline: str
) -> None:
    with RunStore(tmp_path / "runs.db") as store:
        run = store.create("a", {"rounds": 4, "evaluate": evaluate}, "a")
        store.commit(run, [RoundRecord(1, dict.fromkeys(names, Metric(0.5)))])
        assert entry(store, store.info(run)).headline == headline


def test_a_resumed_run_shows_its_rounds_not_what_it_said_when_it_stopped(tmp_path: Path) -> None:
    with RunStore(tmp_path / "runs.db") as store:
        run = store.create("a", {"rounds": 4}, "a")
        store.commit(
            run, [RoundRecord(1, {"central/loss": Metric(3.0)})], status="stopped", summary={"central/loss": 3.0}
        )
        store.claim(run)
        store.commit(run, [RoundRecord(2, {"central/loss": Metric(2.0)})])
        assert entry(store, store.info(run)).numbers == {"central/loss": 2.0}


def test_what_was_seen_is_read_again_once_there_is_another_round(tmp_path: Path) -> None:
    seen: Seen = {}
    with RunStore(tmp_path / "runs.db") as store:
        run = store.create("a", {"rounds": 4}, "a")
        for number in range(3):
            store.commit(run, [RoundRecord(number, {"up/bytes": Metric(1.0)})])
            for _ in range(2):
                assert listing(store, seen)[0].entries[0].numbers == {"up/bytes": number + 1.0}


def test_bytes_of_baselines_that_send_no_model_are_not_shown(tmp_path: Path) -> None:
    from parley.algorithms import algorithms
    from parley.report.groups import role_of

    assert {name for name in algorithms if role_of(name) != "federated"} == set(SILENT)
    with RunStore(tmp_path / "runs.db") as store:
        for name in ("fedavg", "local-only"):
            run = store.create(name, {"rounds": 4, "algorithm": {"name": name}}, name)
            store.commit(run, [RoundRecord(1, {"up/bytes": Metric(5.0)})], status="finished", summary={"up/bytes": 5.0})
        federated, alone = listing(store)
    assert (federated.sent, federated.entries[0].sent) == (5.0, 5.0)
    assert (alone.sent, alone.entries[0].sent) == (None, None)

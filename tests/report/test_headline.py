"""What studies say that runs are judged by (`evaluate.headline`) is what every table judges them by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parley.engine.stopping import headline_of
from parley.report import Comparison
from parley.report.groups import headline_metric, stored_groups
from parley.report.page import report_page
from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore
from parley.study.seeds import Entry


def judged(store: RunStore, name: str, **evaluate: Any) -> None:
    run = store.create(name, {"name": name, "seed": 0, "rounds": 1, "evaluate": evaluate}, name)
    clients = {"a": 0.5, "b": 0.9}
    metrics = {"central/rmse": Metric(0.8), "clients/rmse": Metric(0.7, clients), "clients/loss": Metric(0.3, clients)}
    metrics |= {"central/loss": Metric(0.4), "up/bytes": Metric(1e6), "seconds": Metric(1.0)}
    summary = {key: value.value for key, value in metrics.items()}
    store.commit(run, [RoundRecord(n, metrics) for n in (0, 1)], status="finished", summary=summary)


def test_all_views_go_by_it(tmp_path: Path) -> None:
    with RunStore(tmp_path / "runs.db") as store:
        judged(store, "one", headline="-clients/rmse")
        judged(store, "two", headline="clients/rmse")
        groups = stored_groups(store, store.runs())
        assert headline_metric(groups) == "clients/rmse"
        assert Comparison.stored(store).metric == "clients/rmse"
        assert Comparison.stored(store, metric="loss").metric == "central/loss"
        assert [group.judged_by for group in groups] == ["clients/rmse"] * 2
        assert {Entry(info, info.summary).headline for info in store.runs()} == {"clients/rmse"}
        page = report_page(store, [], names=True)
    worst = page[page.index("The worst tenth<") :].partition("</table>")[0]
    assert "0.9" in worst
    assert "0.5" not in worst


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([{"headline": "clients/rmse"}, {"metric": "rmse"}], ""),
        ([{"metric": "auto"}, {}], ""),
        ([{"metric": "rmse", "headline": None}], "rmse"),
    ],
)
def test_studies_that_do_not_agree_leave_it_open(said: list[dict[str, Any]], expected: str) -> None:
    assert headline_of({"evaluate": one} for one in said) == expected

"""Boosted trees on tables at scale smoke: the same bits are judged, statements about training are not."""

from __future__ import annotations

import pytest

from parley.algorithms.trees import histogram_boosting
from parley_papers.catalogue import run_study


def test_pooled(tmp_path):
    result = run_study("tabular/pooled", "smoke", tmp_path)
    judged = [check for check in result.checks if check.passed is not None]
    assert [check.name for check in judged] == [
        "wine: tensors that differ from the pooled model's",
        "synthetic: tensors that differ from the pooled model's",
    ]
    assert result.passed
    assert set(result.data["scores"]) == {"wine", "synthetic"}
    assert (tmp_path / "tabular" / "pooled" / "smoke-scores.png").exists()


def test_a_sum_that_drops_a_client_is_noticed(monkeypatch: pytest.MonkeyPatch):
    from parley_papers.tabular import pooled
    from parley_papers.tabular.tables import embedded

    whole = histogram_boosting.summed

    def without_the_last(replies):
        *_, last = [replies[client]["sums"]["histograms"].numpy() for client in replies]
        return whole(replies) - (last if len(replies) > 1 else 0)

    table = embedded("wine", scored=1)
    assert pooled._same_bits(table, 2, 3).passed
    monkeypatch.setattr(histogram_boosting, "summed", without_the_last)
    assert not pooled._same_bits(table, 2, 3).passed

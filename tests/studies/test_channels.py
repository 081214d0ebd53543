"""The study of channels at scale smoke: no files needed, exact bytes, statements about training not judged."""

from __future__ import annotations

import numpy as np
import pytest

from parley.report.compare import Comparison, to_csv
from parley.report.comparison_table import caption
from parley.store.runs import RunStore
from parley.studies import run_study
from parley.studies.channels.tradeoff import CHANNELS


def test_tradeoff(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    result = run_study("channels/tradeoff", "smoke", tmp_path / "out")
    assert [check for check in result.checks if check.passed is False] == []
    assert sum(check.passed is True for check in result.checks) == 9
    sent = {arm["arm"]: arm["megabytes"] for arm in result.data["arms"]}
    assert len(sent) == 3 * len(CHANNELS)
    assert sent["FedAvg, qsgd(4)"] < sent["FedAvg, qsgd(8)"] / 1.8 < sent["FedAvg, no channel"] / 6
    assert sent["FedAvg, ef21, top-k(0.01)"] == sent["FedAvg, top-k(0.01)"]
    with RunStore(tmp_path / "out" / "runs.db") as store:
        runs = [info.id for info in store.runs() if info.name in ("FedAvg, qsgd(4)", "FedAvg, no channel")]
        comparison = Comparison.stored(store, runs)
    packed = next(line for line in comparison.lines if "qsgd" in line.run.label)
    plain = next(line for line in comparison.lines if "no channel" in line.run.label)
    assert plain.raw is None
    assert np.isclose(packed.raw, plain.up)
    assert packed.up == pytest.approx(sent["FedAvg, qsgd(4)"])
    assert "without channels" in caption(comparison)
    assert "up_megabytes_without_channels" in to_csv(comparison)

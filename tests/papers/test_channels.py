"""The study of channels at scale smoke: no files needed, exact bytes, statements about training not judged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from parley.channels.packing import pack
from parley.channels.quantise import QSGD
from parley.report import Comparison, to_csv
from parley.report.comparison_table import caption
from parley.store.runs import RunStore
from parley_papers.catalogue import run_study
from parley_papers.channels import quantisers
from parley_papers.channels.tradeoff import CHANNELS


@pytest.mark.long
def test_tradeoff(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    result = run_study("channels/tradeoff", "smoke", tmp_path / "out")
    assert [check for check in result.checks if check.passed is False] == []
    assert sum(check.passed is True for check in result.checks) == 12
    sent = {arm["arm"]: arm["megabytes"] for arm in result.data["arms"]}
    refused = result.data["refused"]
    assert set(refused) == {"sign", "top-k(0.01)", "ef21, top-k(0.01)"}
    assert all("cannot be added to the next" in why for why in refused.values())
    assert len(sent) == 4 * len(CHANNELS) - len(refused)
    assert sent["FedAvg, qsgd(4)"] < sent["FedAvg, qsgd(8)"] / 1.8 < sent["FedAvg, no channel"] / 6
    assert sent["FedAvg, ef21, top-k(0.01)"] == sent["FedAvg, top-k(0.01)"]
    with RunStore(tmp_path / "out" / "runs.db") as store:
        runs = [info.id for info in store.runs() if info.name in ("FedAvg, qsgd(4)", "FedAvg, no channel")]
        comparison = Comparison.stored(store, runs)
    packed = next(line for line in comparison.lines if "qsgd" in line.label)
    plain = next(line for line in comparison.lines if "no channel" in line.label)
    assert plain.raw is None
    assert np.isclose(packed.raw, plain.up)
    assert packed.up == pytest.approx(sent["FedAvg, qsgd(4)"])
    assert "without channels" in caption(comparison)
    assert "up_megabytes_without_channels" in to_csv(comparison)


def test_quantisers(tmp_path):
    result = run_study("channels/quantisers", "smoke", tmp_path)
    assert result.passed
    assert len(result.checks) == 1 + 3 * len(quantisers.QUANTISERS)
    for found in result.data.values():
        assert found["variance"].shape == found["bound"].shape == (5,)


@dataclass(frozen=True)
class RoundsDown(QSGD):
    """Rounds towards smaller levels, which is biased."""

    def compress(self, vector, layout, key):
        norms = torch.stack([piece.abs().max() for piece in vector.split(layout.sizes)])
        scaled = [piece / norm * self.levels for piece, norm in zip(vector.split(layout.sizes), norms, strict=True)]
        return {"codes": pack((torch.cat(scaled).floor() + self.levels).to(torch.uint8), self.bits), "norms": norms}


class Overstated(QSGD):
    """States a hundredth of its variance."""

    def variance(self, entries):
        return super().variance(entries) / 100


@pytest.mark.parametrize(("planted", "named"), [(RoundsDown, "its mean off"), (Overstated, "its variance over")])
def test_planted_quantisers_are_noticed(monkeypatch: pytest.MonkeyPatch, planted, named):
    monkeypatch.setattr(quantisers, "QUANTISERS", {"planted": planted(3)})
    failed = [check.name for check in run_study("channels/quantisers", "smoke").checks if check.passed is False]
    assert any(named in name for name in failed)

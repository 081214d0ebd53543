"""Who gains on real hospitals: the deviance, the bootstrap and the verdict against definitions; smoke without files."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parley.advise.gain.result import ClientGain
from parley.core.key import Key
from parley_papers.catalogue import run_study
from parley_papers.su2023.joining import DECADE, agreement, bootstrapped, deviance


@given(st.floats(-4, 2), st.floats(1, 9000), st.booleans())
def test_the_deviance_is_twice_the_loss_of_likelihood(score, days, ended):
    """Against the exponential likelihood h^e exp(-h t) at its best, h = e / t."""
    y = torch.tensor([days if ended else -days], dtype=torch.float64)
    found = float(deviance(torch.tensor([[score]], dtype=torch.float64), y)[0])
    t = days / DECADE
    log_likelihood = ended * score - math.exp(score) * t
    best = -math.log(t) - 1 if ended else 0.0
    assert found == pytest.approx(2 * (best - log_likelihood), abs=1e-9)
    assert found >= -1e-12


def test_the_bootstrap_covers_the_true_ratio():
    """Of exponential losses with means 2 and 1: the 90% interval holds 2 in 80 to 98 of 100 draws."""
    rng = np.random.default_rng(0)
    inside = 0
    for trial in range(100):
        value, low, high = bootstrapped(np.stack([rng.exponential(2, 60), rng.exponential(1, 60)]), Key(trial))
        assert low <= value <= high
        inside += low <= 2 <= high
    assert 80 <= inside <= 98


def test_what_is_judged():
    def gain(client: str, low: float, high: float, decision: str) -> ClientGain:
        return ClientGain(client, 50, 1.0, 1.0, (low * high) ** 0.5, low, high, decision)  # type: ignore[arg-type]

    ours = (gain("a", 1.2, 2.0, "join"), gain("b", 0.5, 0.9, "stay alone"), gain("c", 0.5, 2.0, "undecided"))
    simple = {"a": (1.5, 1.1, 2.0), "b": (0.9, 0.7, 1.2), "c": (3.0, 2.5, 4.0)}
    assert [check.passed for check in agreement("x", ours, simple)] == [True, True]
    opposite = simple | {"a": (0.5, 0.4, 0.9)}
    assert [check.passed for check in agreement("x", ours, opposite)] == [False, False]


def test_smoke_needs_no_files(monkeypatch, tmp_path):
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    result = run_study("000/gain", "smoke", tmp_path / "out")
    assert result.passed
    assert sum(check.passed is None for check in result.checks) == 4

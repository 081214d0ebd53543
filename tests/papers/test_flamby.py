"""FLamby's tables: the loss and the score against loops, its SCAFFOLD against ours, smoke without files."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from parley.algorithms.averaging.scaffold import Scaffold
from parley.data import Federation
from parley.study.train import train
from parley_papers.catalogue import run_study
from parley_papers.flamby.survival import concordance, cox
from parley_papers.flamby.tables import HEART, POOLED, Logistic, Rates, Table, agreement, methods

patients = st.lists(st.tuples(st.floats(-3, 3), st.integers(0, 6), st.booleans()), min_size=1, max_size=12)


def signed(times: list[int], events: list[bool]) -> torch.Tensor:
    """Half a day is added, so that nobody dies at time 0."""
    return torch.tensor([(t + 0.5) * (1 if e else -1) for t, e in zip(times, events, strict=True)], dtype=torch.float64)


@settings(deadline=None, max_examples=60)
@given(patients)
def test_cox_is_the_partial_likelihood(given):
    scores, times, events = (list(part) for part in zip(*given, strict=True))
    found = cox(torch.tensor(scores, dtype=torch.float64)[:, None], signed(times, events))
    for i, (score, time) in enumerate(zip(scores, times, strict=True)):
        at_risk = [s for k, s in enumerate(scores) if times[k] > time or (times[k] == time and k <= i)]
        expected = math.log(sum(math.exp(s - score) for s in at_risk)) if events[i] else 0.0
        assert float(found[i]) == pytest.approx(expected, abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(patients)
def test_concordance_counts_comparable_pairs(given):
    scores, times, events = (list(part) for part in zip(*given, strict=True))
    right = pairs = 0.0
    for i, k in product(range(len(scores)), repeat=2):
        if events[i] and (times[i] < times[k] or (times[i] == times[k] and not events[k])):
            pairs += 1
            right += 1.0 if scores[i] > scores[k] else 0.5 if scores[i] == scores[k] else 0.0
    found = concordance(signed(times, events), torch.tensor(scores, dtype=torch.float64)[:, None])
    assert math.isnan(found) if not pairs else found == pytest.approx(right / pairs)


def test_the_logistic_model_has_one_score_and_the_logistic_loss():
    torch.manual_seed(0)
    model, x, y = Logistic(3).double(), torch.randn(7, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0, 0])
    logits = model(x)
    own = nn.functional.cross_entropy(logits, y)
    theirs = nn.functional.binary_cross_entropy(torch.sigmoid(model.linear(x))[:, 0], y.double())
    assert own.item() == pytest.approx(theirs.item(), rel=1e-12)


def test_scaffold_is_flamby_s_form_of_it():
    """Its correction: c_i <- c_i + (x - y_i) / (lr K), gradients less c_i; models averaged by size."""
    random = np.random.default_rng(0)
    lr, steps, rounds = 0.05, 4, 3
    data = [(random.standard_normal((n, 3)), random.standard_normal(n)) for n in (5, 9, 20)]
    clients = {str(i): (x, y[:, None]) for i, (x, y) in enumerate(data)}
    federation = Federation.from_arrays(clients)
    model = nn.Linear(3, 1, bias=False).double()
    start = model.weight.detach().numpy()[0].copy()
    method = Scaffold(lr=lr, steps=steps, batch=0)
    run = train(method, federation, model=model, rounds=rounds, loss="half-squares", runtime="inline")
    server, corrections, before = start, [np.zeros(3)] * 3, [start] * 3
    shares = np.array([len(y) for _, y in data]) / sum(len(y) for _, y in data)
    for _ in range(rounds):
        corrections = [c + (server - y) / (lr * steps) for c, y in zip(corrections, before, strict=True)]
        before = []
        for (x, y), correction in zip(data, corrections, strict=True):
            w = server
            for _ in range(steps):
                w = w - lr * (x.T @ (x @ w - y) / len(y) - correction)
            before.append(w)
        server = shares @ np.stack(before)
    assert np.allclose(run.state["model"]["weight"].numpy()[0], server, rtol=1e-10)


@pytest.mark.parametrize("name", ["heart-disease", "tcga-brca"])
def test_smoke_needs_no_files(name, monkeypatch, tmp_path):
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    result = run_study(f"flamby/{name}", "smoke", tmp_path / "out")
    assert result.passed
    assert sum(check.passed is None for check in result.checks) == 7
    assert set(result.data["rows"]) == set(HEART)
    if name == "tcga-brca":
        exact = result.data["exact Cox model"]
        assert set(exact) == {"raw", "stratified"}
        assert min(exact.values()) > 0.6  # patients were made up with this very hazard


def test_rows_agree_within_two_standard_errors_or_two_points():
    rates = Rates(*[0.1] * 8)
    table = Table("x", "accuracy", 1, None, None, None, None, None, methods(rates, True, 4, 2), HEART)  # type: ignore[arg-type]
    own = {name: np.full(5, mean) for name, (mean, _) in HEART.items()}
    assert all(check.passed for check in agreement(table, own))
    for shift, passed in ((0.019, True), (0.021, False)):
        moved = own | {POOLED: own[POOLED] + shift}
        assert agreement(table, moved)[-2].passed is passed
    low, spread = own["FedAvg"] - 0.05, np.array([-0.05, 0.05, 0, -0.05, 0.05])
    assert agreement(table, own | {"FedAvg": low})[0].passed is False
    assert agreement(table, own | {"FedAvg": low + spread})[0].passed is True

"""Forecasts are what the engine does: on least squares, round by round, to rounding; and fixed points are right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import parley as pl
from parley.advise.plan.quadratic import resemblance
from parley.core.errors import InputError
from parley.study.train import make_task
from parley.theory.forecast import LocalQuadratics, LocalWork, ServerStep, forecast

MODEL = pl.models.linear(zero=True)


def federation(seed: int, clients: int = 4, width: int = 3) -> pl.Federation:
    rng = np.random.default_rng(seed)
    sites = {}
    for number in range(clients):
        x = rng.normal(size=(int(rng.integers(8, 20)), width)) * [1.0, 0.5, 0.3]
        sites[f"c{number}"] = (x, x @ rng.normal(size=width) + rng.normal() + 0.1 * rng.normal(size=len(x)))
    whole = tuple(np.concatenate(part) for part in zip(*sites.values(), strict=True))
    return pl.Federation.from_arrays(sites, test=whole, dtype="float64")


def measured(data: pl.Federation, batch: int | None = None):
    task = make_task(data, MODEL, 0)
    sizes = np.array([data.size(name) for name in data.ids], dtype=np.float64)
    return resemblance(task, [data.client(name) for name in data.ids], sizes / sizes.sum(), batch, None)


WORKS = {
    "fedavg": (LocalWork("fedavg", 0.2, 5), ServerStep(), pl.FedAvg(lr=0.2, steps=5, batch=0)),
    "server step": (
        LocalWork("fedavg", 0.2, 3),
        ServerStep(eta=1.3),
        pl.FedAvg(lr=0.2, steps=3, batch=0, server=pl.Descent(1.3)),
    ),
    "heavy ball": (
        LocalWork("fedavg", 0.1, 2),
        ServerStep("heavy-ball", 0.7, 0.6),
        pl.FedAvgM(lr=0.1, steps=2, batch=0, server=pl.HeavyBall(0.7, 0.6)),
    ),
    "nesterov": (
        LocalWork("fedavg", 0.1, 2),
        ServerStep("nesterov", 0.8, 0.5),
        pl.FedAvg(lr=0.1, steps=2, batch=0, server=pl.Nesterov(0.8, 0.5)),
    ),
    "adam": (
        LocalWork("fedavg", 0.1, 2),
        ServerStep("adam", 0.05, 0.9),
        pl.FedAdam(lr=0.1, steps=2, batch=0, server=pl.Adam(0.05, 0.9)),
    ),
    "fedprox": (
        LocalWork("fedprox", 0.2, 4, 0.5),
        ServerStep(),
        pl.FedProx(lr=0.2, steps=4, batch=0, alpha=0.5),
    ),
    "scaffold": (
        LocalWork("scaffold", 0.1, 4),
        ServerStep(eta=1.2),
        pl.Scaffold(lr=0.1, steps=4, batch=0, server=pl.Descent(1.2)),
    ),
    "feddyn": (
        LocalWork("feddyn", 0.1, 6, 0.4),
        ServerStep(),
        pl.FedDyn(lr=0.1, steps=6, batch=0, alpha=0.4),
    ),
}


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("seed", range(2))
def test_a_forecast_is_what_the_engine_does(name: str, seed: int) -> None:
    work, server, algorithm = WORKS[name]
    data = federation(seed)
    found = measured(data)
    assert found.exact
    expected = forecast(found.clients, work, [server], 12)[0]
    run = pl.train(algorithm, data, model=MODEL, rounds=12, runtime="inline", evaluation=pl.Evaluation(clients="none"))
    excess = np.array(run.series("central/loss")[1]) - found.least_loss
    np.testing.assert_allclose(excess, expected, rtol=1e-6, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12), st.sampled_from(["scaffold", "feddyn"]))
def test_methods_with_variates_end_at_the_common_optimum(seed: int, K: int, method: str) -> None:
    rng = np.random.default_rng(seed)
    m, d = 4, 3
    roots = rng.normal(size=(m, d, d))
    A = roots @ roots.transpose(0, 2, 1) / d + 0.5 * np.eye(d)
    p = rng.uniform(0.5, 1, m)
    p /= p.sum()
    g = rng.normal(size=(m, d))
    clients = LocalQuadratics(A, g - p @ g, p, rng.normal(size=d))
    alpha = 0.5 * clients.L if method == "feddyn" else 0.0
    work = LocalWork(method, 0.3 / (clients.L + alpha) / (K if method == "scaffold" else 1), K, alpha)  # type: ignore[arg-type]
    curve = forecast(clients, work, [ServerStep()], 1500)[0]
    assert curve[-1] < 1e-6 * curve[0]


def test_fedavg_ends_where_the_surrogate_has_its_minimum() -> None:
    from parley.theory.surrogate import All, Quadratics

    rng = np.random.default_rng(3)
    roots = rng.normal(size=(3, 2, 2))
    A, c = roots @ roots.transpose(0, 2, 1) + np.eye(2), rng.normal(size=(3, 2))
    known = Quadratics(A, c)
    best = known.empirical_minimiser
    g = np.einsum("mij,mj->mi", A, best - c)
    clients = LocalQuadratics(A, g, np.full(3, 1 / 3), -best)
    gamma = 0.2 / clients.L
    curve = forecast(clients, LocalWork("fedavg", gamma, 6), [ServerStep()], 3000)[0]
    assert curve[-1] == pytest.approx(
        float(clients.excess(known.minimiser(gamma=gamma, theta=All(6)) - best)), rel=1e-8
    )


def test_batches_add_as_much_variance_as_their_covariance_says() -> None:
    """One client, one step of one direction: the mean excess of many draws is the bias' and the variance's."""
    clients = LocalQuadratics(np.array([[[2.0]]]), np.zeros((1, 1)), np.ones(1), np.zeros(1), noise=np.array([[[0.5]]]))
    work = LocalWork("fedavg", 0.1, 3)
    draws = [forecast(clients, work, [ServerStep()], 1, seed)[0, 1] for seed in range(3000)]
    left = 1 - 0.1 * 2.0
    variance = 0.5 * 0.1**2 * (1 + left**2 + left**4)
    assert np.mean(draws) == pytest.approx(0.5 * 2.0 * variance, rel=0.08)


def test_divergence_is_infinite_and_mistakes_are_refused() -> None:
    clients = LocalQuadratics(np.array([[[2.0]]]), np.zeros((1, 1)), np.ones(1), np.ones(1))
    assert forecast(clients, LocalWork("fedavg", 5.0, 50), [ServerStep()], 400)[0, -1] == np.inf
    with pytest.raises(InputError, match="plain server"):
        forecast(clients, LocalWork("scaffold", 0.1, 2), [ServerStep("heavy-ball", 1.0, 0.5)], 3)
    with pytest.raises(InputError, match="forecast needs"):
        LocalQuadratics(np.ones((2, 1, 1)), np.zeros((1, 1)), np.ones(1), np.ones(1))

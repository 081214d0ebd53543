"""best_setting against brute force on the corrected bound; how good it is in fact is the study 001/advice."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory import pareto
from parley.theory.condition import curvature_bound, log_distortion_spread
from parley.theory.servers import SERVERS, tune


@settings(deadline=None, max_examples=120)
@given(
    exponent=st.floats(0, 8),
    rounds=st.sampled_from([1, 2, 5, 30, 300, 10**4, 10**6]),
    start_distance=st.sampled_from([0.0, 1e-3, 0.3, 1.0, 20.0, 1e4]),
    C=st.sampled_from([0.0, 0.1, 1.0, 30.0]),
    server=st.sampled_from(SERVERS),
    alpha=st.sampled_from([0.0, 0.01, 1.0]),
    max_steps=st.sampled_from([None, 1, 3, 100]),
    max_gamma=st.sampled_from([None, 0.0, 0.01, 0.4]),
)
def test_beats_every_point_of_a_grid(
    exponent: float,
    rounds: int,
    start_distance: float,
    C: float,
    server: str,
    alpha: float,
    max_steps: int | None,
    max_gamma: float | None,
) -> None:
    L, mu = 1.0, 10.0**-exponent
    advice = pareto.best_setting(
        rounds=rounds,
        start_distance=start_distance,
        C=C,
        L=L,
        mu=mu,
        server=server,
        alpha=alpha,
        max_steps=max_steps,
        max_gamma=max_gamma,
    )
    best = advice.best
    assert best.K >= 1
    assert 0 <= best.gamma < 1 / (L + alpha)
    assert max_steps is None or max_steps >= best.K
    assert max_gamma is None or best.gamma <= max_gamma
    assert best.gamma == 0 or best.gamma * (L + alpha) >= 1e-3 * (1 - 1e-9)
    gammas = np.append(0.0, np.geomspace(1e-3, 1 - 1e-6, 80)) / (L + alpha)
    gammas = gammas[gammas <= (np.inf if max_gamma is None else max_gamma)][:, None]
    counts = np.unique(np.geomspace(1, max_steps or 1e9, 60).round())
    spread = log_distortion_spread(L, mu, gammas, counts, alpha)
    convergence, drift = pareto.bound_terms(spread, L / mu, rounds, start_distance, C, server)
    rounding = 1e-14 * (start_distance + C * np.sqrt(L / mu))
    assert best.bound <= (convergence + drift).min() * (1 + 1e-9) + rounding
    # The reported terms are those of the reported setting.
    terms = [
        float(term)
        for term in pareto.bound_terms(
            log_distortion_spread(L, mu, best.gamma, best.K, alpha), L / mu, rounds, start_distance, C, server
        )
    ]
    assert [best.convergence, best.drift] == pytest.approx(terms, rel=1e-12)
    assert best.server == tune(server, *curvature_bound(L, mu, best.gamma, best.K, alpha, "fedavg"))
    assert (advice.minibatch_sgd.drift, advice.minibatch_sgd.kappa) == pytest.approx((0.0, L / mu))
    assert advice.one_shot.kappa == pytest.approx(1.0, abs=1e-12)
    if max_steps is None and max_gamma is None and alpha == 0:
        assert best.bound <= min(advice.minibatch_sgd.bound, advice.one_shot.bound) * (1 + 1e-12) + rounding


@pytest.mark.parametrize("server", SERVERS)
def test_no_kappa_is_better_by_a_part_in_a_billion(server: str) -> None:
    """The bound depends on kappa alone: against 200,000 values of it between those of the two extremes."""
    request = {"kappa0": 100.0, "start_distance": 50.0, "C": 1.0, "rounds": 12}
    best = pareto.best_setting(server=server, **request).best
    spreads = np.linspace(0, np.log(100.0), 200_001)
    convergence, drift = pareto.bound_terms(spreads, 100.0, 12, 50.0, 1.0, server)
    assert 1.5 < best.kappa < 99
    assert best.bound <= float((convergence + drift).min()) * (1 + 1e-9)


def test_terms_are_the_corrected_bound_written_out() -> None:
    kappa0, kappa, T, D, C = 100.0, 25.0, 7, 3.0, 2.0
    delta = (10 - 5) * C
    for server, rho, factor in (
        ("none", 24 / 26, 1.0),
        ("nesterov", 1 - 2 / np.sqrt(76), 1 + 2 / np.sqrt(76) * T),
        ("heavy-ball", 4 / 6, 1 + 10 / 6 * T),
    ):
        convergence, drift = pareto.bound_terms(np.log(kappa0 / kappa), kappa0, T, D, C, server)
        assert float(drift) == pytest.approx(delta, rel=1e-12)
        assert float(convergence) == pytest.approx(factor * rho**T * (D + delta), rel=1e-12)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), rounds=st.integers(1, 50), server=st.sampled_from(SERVERS))
def test_the_bound_holds_for_the_advised_setting(seed: int, rounds: int, server: str, problem: Callable) -> None:
    clients, _, _, rng = problem(seed)
    model = pareto.Rounds(clients, rng.standard_normal(clients.c.shape[1]) * 10 ** rng.uniform(-1, 2))
    advice = pareto.best_setting(
        rounds=rounds, start_distance=model.start_distance, C=clients.C, L=clients.L, mu=clients.mu, server=server
    )
    for choice in (advice.best, advice.minibatch_sgd, advice.one_shot):
        actual = model.descent(choice.gamma, choice.K).distance(
            server, choice.server.eta, choice.server.momentum, rounds
        )
        assert actual <= choice.bound * (1 + 1e-9) + 1e-11 * (model.start_distance + clients.C)


def test_kappa0_alone_gives_gamma_in_units_of_one_over_l() -> None:
    request = {"rounds": 20, "start_distance": 5.0, "C": 1.0, "server": "heavy-ball"}
    free = pareto.best_setting(kappa0=100.0, **request).best
    scaled = pareto.best_setting(L=300.0, mu=3.0, **request).best
    assert (scaled.K, scaled.gamma * 300.0) == (free.K, pytest.approx(free.gamma, rel=1e-6))
    assert scaled.server.eta * 300.0 == pytest.approx(free.server.eta, rel=1e-6)
    assert scaled.bound == pytest.approx(free.bound, rel=1e-9)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("kappa0", [1.0, 1 + 1e-15, 1e16, 1e100, 1e308])
@pytest.mark.parametrize("alpha", [0.0, 1e200])
def test_extreme_constants_get_finite_advice(kappa0: float, alpha: float, server: str) -> None:
    advice = pareto.best_setting(kappa0=kappa0, alpha=alpha, rounds=10**6, start_distance=1.0, C=1.0, server=server)
    for choice in (advice.best, advice.minibatch_sgd, advice.one_shot):
        numbers = [choice.gamma, choice.kappa, choice.bound, choice.server.eta, choice.server.momentum]
        assert np.isfinite(numbers).all()
        assert min(numbers) >= 0
        assert 1 <= choice.K <= 2**62 + 1
    # One-shot averaging does not depend on the proximal strength asked for.
    plain = pareto.best_setting(kappa0=kappa0, rounds=10**6, start_distance=1.0, C=1.0, server=server)
    assert advice.one_shot == plain.one_shot


def test_few_rounds_ask_for_more_local_work_than_many() -> None:
    request = {"kappa0": 100.0, "start_distance": 50.0, "C": 1.0}
    few, some, many = (pareto.best_setting(rounds=T, **request).best for T in (3, 100, 2000))
    assert few.kappa < some.kappa < many.kappa
    assert many.kappa == pytest.approx(100.0, rel=0.05)


def test_a_step_too_small_for_single_precision_is_none() -> None:
    request = {"kappa0": 100.0, "rounds": 5, "start_distance": 50.0, "C": 1.0}
    assert pareto.best_setting(max_gamma=1e-10, **request).best.gamma == 0
    assert pareto.best_setting(max_gamma=1e-2, **request).best.gamma > 9e-3


def test_refusals_name_the_condition() -> None:
    request = {"rounds": 5, "start_distance": 1.0, "C": 1.0}
    for wrong, words in (
        ({}, "either kappa0, or both"),
        ({"kappa0": 10.0, "L": 1.0}, "either kappa0, or both"),
        ({"kappa0": 0.5}, "1 <= kappa0"),
        ({"L": 1.0, "mu": 0.0}, "mu > 0"),
        ({"L": 1e300, "mu": 1e-300}, "L / mu must be finite"),
        ({"kappa0": 10.0, "rounds": 0}, "rounds"),
        ({"kappa0": 10.0, "rounds": 2.5}, "whole number"),
        ({"kappa0": 10.0, "rounds": float("nan")}, "whole number"),
        ({"kappa0": 10.0, "start_distance": -1.0}, "start distance"),
        ({"kappa0": 10.0, "C": float("nan")}, "C >= 0"),
        ({"kappa0": 10.0, "server": "nestrov"}, "did you mean 'nesterov'"),
        ({"kappa0": 10.0, "max_steps": 0}, "local steps"),
        ({"kappa0": 10.0, "max_steps": float("nan")}, "whole number"),
        ({"kappa0": 10.0, "max_gamma": -1.0}, "client step"),
        ({"kappa0": 10.0, "alpha": -1.0}, "alpha"),
    ):
        with pytest.raises(InputError, match=words):
            pareto.best_setting(**{**request, **wrong})

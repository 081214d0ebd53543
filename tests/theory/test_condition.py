"""Lemmas 3, 4 and 6 of paper 001, their tightness (Appendix B.3), and numbers that must not break."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory.condition import (
    curvature_bound,
    kappa_bound,
    log_distortion_spread,
    log_kappa_bound,
    log_phi,
    log_psi,
)
from parley.theory.surrogate import All, Last, Quadratics

SEEDS = st.integers(0, 10**6)


def in_region(seed: int, K: int, family: str, problem: Callable) -> tuple[Quadratics, float, float, All | Last]:
    """Clients with gamma, alpha and Theta inside the region of Lemma 3 ("fedavg") or 4 ("maml")."""
    clients, gamma, alpha, _ = problem(seed)
    if family == "maml":
        return clients, gamma * (clients.L + alpha) / (K * clients.L + alpha), alpha, Last(K)
    return clients, gamma, alpha, All(K)


def surrogate_is_enclosed(seed: int, K: int, family: str, problem: Callable) -> None:
    clients, gamma, alpha, theta = in_region(seed, K, family, problem)
    smooth, strong = clients.curvature(gamma, theta, alpha)
    s = gamma * (np.array([clients.mu, clients.L]) + alpha)
    geometric = np.array(
        [((1 - own) ** np.arange(K)).sum() if family == "fedavg" else (1 - own) ** (K - 1) for own in s]
    )
    low, high = geometric * np.array([clients.mu, clients.L])  # phi or psi, as printed in (10) and (12)
    top, bottom = curvature_bound(clients.L, clients.mu, gamma, K, alpha, family)
    assert (top, bottom) == pytest.approx((high, low), rel=1e-9)
    slack = 1e-12 * top
    assert bottom - slack <= strong <= smooth <= top + slack
    kappa = float(kappa_bound(clients.L, clients.mu, gamma, K, alpha, family))
    assert kappa == pytest.approx(high / low, rel=1e-9)
    assert smooth / strong <= clients.kappa(gamma, theta, alpha) * (1 + 1e-9) <= kappa * (1 + 1e-8)


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, K=st.integers(1, 200))
def test_lemma_3_phi_encloses_the_surrogate_of_theta_1_to_k(seed: int, K: int, problem: Callable) -> None:
    surrogate_is_enclosed(seed, K, "fedavg", problem)


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, K=st.integers(1, 200))
def test_lemma_4_psi_encloses_the_surrogate_of_theta_k(seed: int, K: int, problem: Callable) -> None:
    surrogate_is_enclosed(seed, K, "maml", problem)


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, K=st.integers(1, 200), family=st.sampled_from(["fedavg", "maml"]))
def test_lemma_6_distortion_and_surrogate_share_kappa_0(seed: int, K: int, family: str, problem: Callable) -> None:
    clients, gamma, alpha, theta = in_region(seed, K, family, problem)
    logs = clients.log_distortion(gamma, theta, alpha)
    most = np.log(clients.kappa0) - log_kappa_bound(clients.L, clients.mu, gamma, K, alpha, family)
    assert (logs.max(axis=1) - logs.min(axis=1) <= most + 1e-10).all()
    # One for all clients, as the corrected bounds use it: b / a over every Q_i together.
    assert logs.max() - logs.min() <= most + 1e-10
    assert most == pytest.approx(
        float(log_distortion_spread(clients.L, clients.mu, gamma, K, alpha, family)), abs=1e-12
    )


@settings(deadline=None, max_examples=40)
@given(share=st.floats(0, 0.999), K=st.integers(1, 50), alpha=st.floats(0, 5), L=st.floats(1, 1e4))
def test_appendix_b3_lemmas_3_and_4_are_tight(share: float, K: int, alpha: float, L: float) -> None:
    clients = Quadratics(np.diag([L, 1.0])[None], np.zeros((1, 2)))
    for family, theta, gamma in (
        ("fedavg", All(K), share / (L + alpha)),
        ("maml", Last(K), share / (K * L + alpha)),
    ):
        smooth, strong = clients.curvature(gamma, theta, alpha)
        assert np.log(smooth / strong) == pytest.approx(
            float(log_kappa_bound(L, 1.0, gamma, K, alpha, family)), abs=1e-10
        )
        log_value = log_phi if family == "fedavg" else log_psi
        assert np.log(smooth) == pytest.approx(float(log_value(L, alpha, gamma, K)), abs=1e-10)


def test_kappa_falls_with_steps_gamma_and_alpha_from_kappa0() -> None:
    L, mu = 10.0, 1.0
    gammas, counts, alphas = np.linspace(0, 0.0999, 50), np.arange(1, 200), np.linspace(0, 50, 40)
    assert log_kappa_bound(L, mu, 0.0, 100) == pytest.approx(np.log(10), rel=1e-15)
    assert log_kappa_bound(L, mu, 0.05, 1) == pytest.approx(np.log(10), rel=1e-15)
    assert (np.diff(log_kappa_bound(L, mu, gammas, 20)) < 0).all()
    assert (np.diff(log_kappa_bound(L, mu, 0.05, counts)) < 0).all()
    by_alpha = log_kappa_bound(L, mu, 0.01, 1000, alphas)
    assert by_alpha[0] < 1e-3  # K -> infinity without a proximal term is one-shot averaging
    assert by_alpha[-1] == pytest.approx(np.log(10 * 51 / 60), rel=1e-6)
    # The paper says a larger alpha lowers kappa: not for large K, where it raises it from 1 towards kappa_0.
    assert (np.diff(by_alpha) > 0).all()


@pytest.mark.parametrize("kappa0", [1.0, 1.01, 1e2, 1e8])
@pytest.mark.parametrize("family", ["fedavg", "maml"])
def test_no_overflow_nan_or_negative_spread_anywhere_in_the_region(kappa0: float, family: str) -> None:
    K = np.array([1, 2, 10, 10**3, 10**6, 10**9], dtype=np.float64)[:, None, None]
    alpha = np.array([0.0, 1e-6, 1.0, 1e6])[:, None]
    share = np.array([0.0, 1e-15, 1e-12, 1e-6, 0.1, 0.5, 0.999, 1 - 1e-12])
    gamma = share / (((K * kappa0) if family == "maml" else kappa0) + alpha)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        spread = log_distortion_spread(kappa0, 1.0, gamma, K, alpha, family)
    assert np.isfinite(spread).all()
    assert (spread >= 0).all()
    assert (spread <= np.log(kappa0)).all()


def test_refusals_name_the_condition() -> None:
    with pytest.raises(InputError, match=r"gamma < 1/\(L \+ alpha\)"):
        log_kappa_bound(10.0, 1.0, 0.1, 5)
    with pytest.raises(InputError, match=r"gamma < 1/\(K L \+ alpha\)"):
        log_kappa_bound(10.0, 1.0, 0.05, 5, family="maml")
    with pytest.raises(InputError, match="mu > 0"):
        log_kappa_bound(10.0, 0.0, 0.01, 5)
    with pytest.raises(InputError, match="mu <= L"):
        log_kappa_bound(1.0, 2.0, 0.01, 5)
    with pytest.raises(InputError, match="1 <= K < infinity"):
        log_kappa_bound(10.0, 1.0, 0.01, 0.5)
    for wrong in (np.inf, np.nan):
        with pytest.raises(InputError, match="1 <= K < infinity"):
            log_kappa_bound(10.0, 1.0, 0.01, wrong)
    with pytest.raises(InputError, match="L / mu must be finite"):
        log_kappa_bound(1e300, 1e-300, 0.0, 5)
    with pytest.raises(InputError, match="unknown family 'fedavgg'"):
        log_kappa_bound(10.0, 1.0, 0.01, 5, family="fedavgg")

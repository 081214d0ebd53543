"""Pareto frontiers of paper 001, Section 5, against their closed forms."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory import pareto
from parley.theory.servers import SERVERS

KAPPA0 = st.floats(0.00433, 8).map(lambda exponent: 10.0**exponent)  # 1.01 to 1e8


@settings(deadline=None, max_examples=60)
@given(
    kappa0=KAPPA0,
    server=st.sampled_from(SERVERS),
    alpha=st.sampled_from([0.0, 0.5, 10.0]),
    share=st.floats(1e-9, 0.999),
)
def test_points_lie_on_the_closed_form(kappa0: float, server: str, alpha: float, share: float) -> None:
    K = np.geomspace(1, 1e9, 300)
    for family, gamma in (("fedavg", share / (kappa0 + alpha)), ("maml", share / (K * kappa0 + alpha))):
        points = pareto.family_frontier(kappa0, 1.0, gamma, K, alpha, server, family)
        assert np.isfinite([points.rho, points.delta, points.log_kappa]).all()
        assert (points.delta >= 0).all()
        assert ((points.rho >= 0) & (points.rho < 1)).all()
        assert np.abs(points.rho - pareto.rho_of_delta(points.delta, kappa0, server)).max() <= 1e-12
        # The printed definition (17) and the eliminated forms, as written.
        root = np.exp(points.log_kappa / 2)
        np.testing.assert_allclose(points.delta, (np.sqrt(kappa0) - root) / (np.sqrt(kappa0) + root), atol=1e-12)
        ratio = (1 + points.delta) / (1 - points.delta)
        left = {
            "none": (1 + points.rho) / (1 - points.rho) * ratio**2,
            "nesterov": (4 / (1 - points.rho) ** 2 - 1) / 3 * ratio**2,
            "heavy-ball": ((1 + points.rho) / (1 - points.rho) * ratio) ** 2,
        }[server]
        np.testing.assert_allclose(left, kappa0, rtol=1e-7)


@settings(deadline=None, max_examples=100)
@given(
    kappa0=KAPPA0,
    server=st.sampled_from(SERVERS),
    family=st.sampled_from(["fedavg", "maml"]),
    scale=st.floats(-150, 150).map(lambda exponent: 10.0**exponent),
    share=st.sampled_from([0.0, 1e-300, 1e-15, 1e-12, 1e-3, 0.5, 1 - 1e-9, 1 - 1e-15]),
    alpha=st.sampled_from([0.0, 1e-30, 1e-6, 1.0, 1e6]),
)
def test_nothing_breaks_up_to_the_edge_of_the_region(
    kappa0: float, server: str, family: str, scale: float, share: float, alpha: float
) -> None:
    """gamma from 0 to the last numbers before 1/(L + alpha), curvatures of any size, K from 1 to 1e9."""
    K = np.append([1.0, 1.5, 2.0], np.geomspace(3, 1e9, 40))
    L, mu, strength = kappa0 * scale, scale, alpha * scale
    gamma = share / ((K * L if family == "maml" else L) + strength)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        points = pareto.family_frontier(L, mu, gamma, K, strength, server, family)
    assert np.isfinite([points.rho, points.delta, points.log_kappa]).all()
    assert ((points.delta >= 0) & (points.delta < 1)).all()
    assert ((points.rho >= 0) & (points.rho < 1)).all()
    assert np.abs(points.rho - pareto.rho_of_delta(points.delta, L / mu, server)).max() <= 1e-12
    if family == "fedavg":  # for Theta_K gamma falls with K here
        assert (np.diff(points.rho) <= 1e-13).all()
        assert (np.diff(points.delta) >= -1e-13).all()


@settings(deadline=None, max_examples=30)
@given(kappa0=KAPPA0, server=st.sampled_from(SERVERS))
def test_closed_form_and_inverse_agree_and_reach_both_ends(kappa0: float, server: str) -> None:
    rho, delta = pareto.exact_frontier(kappa0, server, 500)
    assert delta[0] == 0
    assert rho[-1] == 0
    assert rho[0] == pytest.approx(float(pareto.rate(np.log(kappa0), server)), rel=1e-15)
    assert delta[-1] == pytest.approx((np.sqrt(kappa0) - 1) / (np.sqrt(kappa0) + 1), abs=1e-12)
    np.testing.assert_allclose(pareto.rho_of_delta(delta, kappa0, server), rho, atol=1e-12)
    np.testing.assert_allclose(pareto.delta_of_rho(rho, kappa0, server), delta, atol=1e-8)
    assert (np.diff(rho) < 0).all()
    assert (np.diff(delta) > 0).all()


@pytest.mark.parametrize("server", SERVERS)
def test_the_ends_are_exact_even_where_the_rate_rounds_to_one(server: str) -> None:
    for kappa0 in (1.0, 1.01, 1e8, 1e20, 1e300):
        slowest = pareto.rate(np.log(kappa0), server)
        assert pareto.delta_of_rho(slowest, kappa0, server) == 0
        assert pareto.rho_of_delta(0.0, kappa0, server) == slowest


@settings(deadline=None, max_examples=30)
@given(kappa0=KAPPA0)
def test_heavy_ball_frontier_is_symmetric(kappa0: float) -> None:
    """The paper's conjecture: swapping rho and Delta maps the frontier to itself."""
    rho, delta = pareto.exact_frontier(kappa0, "heavy-ball", 400)
    np.testing.assert_allclose(rho, delta[::-1], atol=1e-14)
    inner = slice(1, -1)
    np.testing.assert_allclose(pareto.rho_of_delta(rho[inner], kappa0, "heavy-ball"), delta[inner], atol=1e-12)


def test_servers_are_ordered_and_gd_and_nesterov_are_not_symmetric() -> None:
    delta = np.linspace(0, pareto.cusp_delta(50.0) * 0.999, 200)
    none, nesterov, heavy = (pareto.rho_of_delta(delta, 50.0, server) for server in SERVERS)
    assert (heavy < nesterov).all()
    assert (nesterov < none).all()
    rho, gap = pareto.exact_frontier(50.0, "none")
    assert np.abs(rho - gap[::-1]).max() > 0.1


def test_proximal_frontier_is_a_subset() -> None:
    K = np.geomspace(1, 1e6, 2000)
    plain = pareto.family_frontier(10.0, 1.0, 0.5 / 10, K)
    for alpha in (0.5, 1.0, 5.0):
        prox = pareto.family_frontier(10.0, 1.0, 0.5 / (10 + alpha), K, alpha)
        np.testing.assert_allclose(prox.rho, pareto.rho_of_delta(prox.delta, 10.0), atol=1e-12)
        assert prox.delta.max() < plain.delta.max() - 0.01  # it cannot reach one-shot averaging
        assert prox.rho.min() > 0.01
    assert plain.rho.min() < 1e-12


def test_maml_is_a_subset_too_and_simulated_maml_leaves_at_the_cusp() -> None:
    L, mu, gamma = 10.0, 1.0, 0.001
    spectrum = pareto.wishart_spectrum(100, L, mu, np.random.default_rng(0))
    assert (spectrum[0], spectrum[-1]) == pytest.approx((mu, L), rel=1e-12)
    K = np.unique(np.geomspace(1, 1e6, 5000).round())
    points = pareto.simulated_maml_frontier(spectrum, gamma, K)
    small = gamma < 1 / (K * L)
    exact = pareto.family_frontier(L, mu, gamma, K[small], family="maml")
    np.testing.assert_allclose(points.rho[small], exact.rho, atol=1e-12)
    np.testing.assert_allclose(points.delta[small], exact.delta, atol=1e-12)
    # Beyond, no point is below the FedAvg curve, and those with Delta in its range are strictly above it in the end.
    inside = points.delta <= pareto.cusp_delta(L / mu)
    above = points.rho[inside] - pareto.rho_of_delta(points.delta[inside], L / mu)
    assert above.min() >= -1e-12
    assert above.max() > 0.1
    # The cusp: psi(L) = psi(mu) where Delta is FedAvg's one-shot value, and there d(rho)/d(Delta) jumps.
    turn = pareto.cusp_steps(L, mu, gamma)
    at = pareto.simulated_maml_frontier(spectrum, gamma, turn)
    assert at.delta[0] == pytest.approx(pareto.cusp_delta(10.0), abs=1e-12)
    step = 1e-4 * turn
    before, after = (
        pareto.simulated_maml_frontier(spectrum, gamma, [turn + s, turn + s + step]) for s in (-2 * step, step)
    )
    slopes = [float(np.diff(p.rho)[0] / np.diff(p.delta)[0]) for p in (before, after)]
    assert abs(slopes[1] - slopes[0]) > 0.5


def test_simulated_frontier_never_breaks_for_a_billion_steps() -> None:
    spectrum = np.array([1.0, 3.0, 10.0])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        points = pareto.simulated_maml_frontier(spectrum, 0.05, np.geomspace(1, 1e9, 100), [0.0] * 100, "nesterov")
    assert np.isfinite([points.rho, points.delta, points.log_kappa]).all()
    assert (points.delta >= 0).all()


def test_ten_thousand_points_take_less_than_fifty_milliseconds() -> None:
    K = np.geomspace(1, 1e6, 10_000)
    spectrum = np.linspace(1, 10, 20)
    for server in SERVERS:
        calls = {
            "closed form": lambda server=server: pareto.exact_frontier(10.0, server, 10_000),
            "fedavg": lambda server=server: pareto.family_frontier(10.0, 1.0, 0.001, K, 0.0, server),
            "maml": lambda server=server: pareto.family_frontier(10.0, 1.0, 0.09 / K, K, 0.0, server, "maml"),
            "simulated": lambda server=server: pareto.simulated_maml_frontier(spectrum, 0.001, K, 0.0, server),
        }
        for name, call in calls.items():
            seconds = []
            for _ in range(7):
                began = time.process_time()
                call()
                seconds.append(time.process_time() - began)
            assert min(seconds) < 0.05, f"{name}, {server}: {min(seconds):.3f} s"


def test_refusals_name_the_condition() -> None:
    with pytest.raises(InputError, match=r"gamma < 1/\(L \+ alpha\)"):
        pareto.family_frontier(10.0, 1.0, 0.1, [1, 2])
    with pytest.raises(InputError, match=r"gamma < 1/\(K L \+ alpha\)"):
        pareto.family_frontier(10.0, 1.0, 0.09, [1, 2], family="maml")
    with pytest.raises(InputError, match="mu > 0"):
        pareto.family_frontier(10.0, -1.0, 0.01, 5)
    with pytest.raises(InputError, match="suboptimality is from 0 to"):
        pareto.rho_of_delta(0.9, 10.0)
    with pytest.raises(InputError, match="the rate is from 0 to"):
        pareto.delta_of_rho(0.99, 10.0)
    with pytest.raises(InputError, match="spectrum"):
        pareto.simulated_maml_frontier([], 0.1, 2)
    with pytest.raises(InputError, match="mu > 0"):
        pareto.simulated_maml_frontier([0.0, 1.0], 0.1, 2)
    for wrong in ([0.5], [np.inf], [np.nan]):
        with pytest.raises(InputError, match="1 <= K < infinity"):
            pareto.simulated_maml_frontier([1.0, 3.0], 0.1, wrong)
    with pytest.raises(InputError, match="points of a frontier must be a whole number of at least 2"):
        pareto.exact_frontier(10.0, points=1)
    with pytest.raises(InputError, match="mu <= L"):
        pareto.exact_frontier(0.5)
    with pytest.raises(InputError, match="gamma > 0"):
        pareto.cusp_steps(10.0, 1.0, 0.0)
    with pytest.raises(InputError, match="whole number of at least 2"):
        pareto.wishart_spectrum(1, 10.0, 1.0, np.random.default_rng(0))

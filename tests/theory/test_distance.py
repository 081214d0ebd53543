"""What replaces Lemma 5 of paper 001, where the printed one fails, and Lemma 12 with its tightness (Appendix C)."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory.condition import log_distortion_spread
from parley.theory.distance import distances, drift_bound, residual_spread
from parley.theory.surrogate import All, Last, Quadratics

SEEDS = st.integers(0, 10**6)


def rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS, K=st.integers(1, 300))
def test_corrected_bounds_hold(seed: int, K: int, problem: Callable) -> None:
    clients, gamma, alpha, rng = problem(seed)
    gamma *= 0.9  # Theta_K just below gamma = 1/L is beyond double precision
    for theta in (All(K), Last(min(K, 8)), [*rng.uniform(0, 1, 5), 1.0]):
        found = distances(clients, gamma, theta, alpha)
        assert found.actual <= found.corrected * (1 + 1e-9) + 1e-12
        assert found.actual_energy <= found.corrected_energy * (1 + 1e-9) + 1e-12 * np.sqrt(clients.L)
        # The sharp form, in the norm of the surrogate's Hessian, computed here from the matrices.
        drift, H = clients.drift(gamma, theta, alpha), clients.hessian(gamma, theta, alpha)
        a, b = (
            np.exp(clients.log_distortion(gamma, theta, alpha)).min(),
            np.exp(clients.log_distortion(gamma, theta, alpha)).max(),
        )
        right = (np.sqrt(b) - np.sqrt(a)) * residual_spread(clients)
        assert np.sqrt(drift @ H @ drift) <= right * (1 + 1e-9) + 1e-12 * np.sqrt(b * clients.L)
        assert found.corrected == pytest.approx(right / np.sqrt(np.linalg.eigvalsh(H)[0]), rel=1e-6, abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS, K=st.integers(1, 300), moved=st.booleans())
def test_bound_from_constants_alone_holds_for_any_ball_centre(
    seed: int, K: int, moved: bool, problem: Callable
) -> None:
    clients, gamma, alpha, rng = problem(seed)
    centre = rng.standard_normal(clients.c.shape[1]) * 5 if moved else 0.0
    shifted = Quadratics(clients.A, clients.c + centre, clients.p)
    spread = log_distortion_spread(clients.L, clients.mu, gamma, K, alpha)
    actual = np.linalg.norm(shifted.drift(gamma, All(K), alpha))
    assert actual <= float(drift_bound(spread, clients.kappa0, clients.C)) + 1e-11


def test_printed_lemma_5_fails_in_two_dimensions() -> None:
    turn, angle = rotation(0.0399), 0.0349
    A = np.diag([1000.0, 1.0])
    c = np.array([np.cos(angle), np.sin(angle)])
    clients = Quadratics(np.stack([A, turn @ A @ turn.T]), np.stack([c, -c]))
    found = distances(clients, 4e-4, All(2))
    assert found.actual == pytest.approx(2.16, abs=0.01)
    assert found.printed_in_paper == pytest.approx(0.445, abs=0.001)
    assert found.one_dimension is None
    assert found.actual <= found.corrected
    assert found.actual_energy <= found.corrected_energy
    # Theorem 4 and Corollary 1 inherit the failure: at T -> infinity nothing else is left of the bound.
    spread = log_distortion_spread(1000.0, 1.0, 4e-4, 2)
    assert found.actual > 8 * clients.C * np.tanh(spread / 4)
    assert found.actual <= float(drift_bound(spread, 1000.0, clients.C))


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS, K=st.integers(1, 300))
def test_lemma_12_holds_in_one_dimension(seed: int, K: int, problem: Callable) -> None:
    clients, gamma, alpha, _ = problem(seed, dimension=1)
    for theta in (All(K), Last(K)):
        found = distances(clients, gamma, theta, alpha)
        assert found.one_dimension is not None
        assert found.actual <= found.one_dimension + 1e-12
        assert found.printed_in_paper == pytest.approx(4 * found.one_dimension)


@pytest.mark.parametrize("epsilon", [0.1, 1e-3, 1e-6])
def test_appendix_c2_lemma_12_is_tight(epsilon: float) -> None:
    """A = 4, 1; c = 1, -1; gamma = 1/8; Theta_K with K large and nearly all weight on the first client."""
    p = 1 - epsilon / 10
    clients = Quadratics(np.array([[[4.0]], [[1.0]]]), np.array([[1.0], [-1.0]]), np.array([p, 1 - p]))
    found = distances(clients, 1 / 8, Last(1000))
    assert found.one_dimension is not None
    assert found.actual >= found.one_dimension - epsilon
    assert found.actual == pytest.approx(8 * p / (3 * p + 1), abs=1e-9)  # eq. (37)
    Q = clients.distortion(1 / 8, Last(5))[:, 0, 0]
    np.testing.assert_allclose(Q, [0.5**4, (7 / 8) ** 4], rtol=1e-14)  # powers K - 1


def test_clients_that_agree_do_not_drift(problem: Callable) -> None:
    clients, gamma, alpha, _ = problem(7, dimension=3)
    agreeing = Quadratics(clients.A, np.ones_like(clients.c), clients.p)
    found = distances(agreeing, gamma, All(50), alpha)
    assert found.actual <= 1e-12
    assert found.corrected <= 1e-9


def test_bound_from_constants_written_out() -> None:
    kappas = np.array([1.0, 4.0, 25.0, 100.0])
    np.testing.assert_allclose(drift_bound(np.log(100.0 / kappas), 100.0, 3.0), (10 - np.sqrt(kappas)) * 3, atol=1e-12)


def test_radius_must_be_a_radius() -> None:
    with pytest.raises(InputError, match="C >= 0"):
        drift_bound(0.1, 10.0, -1.0)

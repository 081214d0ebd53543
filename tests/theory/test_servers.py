"""Theorem 3 of paper 001 as far as it is true, with the tuned hyper-parameters of Table 2."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory.servers import (
    SERVERS,
    ServerSetting,
    advance,
    error_factors,
    log_kappa_of,
    rate,
    spectral_radius,
    transient,
    tune,
)
from parley.theory.surrogate import All

KAPPAS = st.floats(1, 1e6)


def run(
    server: str, setting: ServerSetting, H: np.ndarray, minimiser: np.ndarray, x0: np.ndarray, T: int
) -> np.ndarray:
    """The update rules word by word."""
    before, x = x0, x0
    for _ in range(T):
        if server == "nesterov":
            y = x + setting.momentum * (x - before)
            before, x = x, y - setting.eta * H @ (y - minimiser)
        else:
            before, x = x, x - setting.eta * H @ (x - minimiser) + setting.momentum * (x - before)
    return x


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("T", [0, 1, 2, 7, 40])
def test_closed_form_rounds_equal_the_update_rule(server: str, T: int) -> None:
    rng = np.random.default_rng(T)
    root = rng.standard_normal((4, 4))
    H, minimiser, x0 = root @ root.T + 0.1 * np.eye(4), rng.standard_normal(4), rng.standard_normal(4)
    values = np.linalg.eigvalsh(H)
    setting = tune(server, values[-1], values[0])
    expected = run(server, setting, H, minimiser, x0, T)
    np.testing.assert_allclose(advance(server, setting, H, minimiser, x0, T), expected, rtol=1e-9, atol=1e-10)


@settings(deadline=None, max_examples=60)
@given(kappa=KAPPAS, server=st.sampled_from(SERVERS))
def test_table_2(kappa: float, server: str) -> None:
    printed = {
        "none": (kappa - 1) / (kappa + 1),
        "nesterov": 1 - 2 / np.sqrt(3 * kappa + 1),
        "heavy-ball": (np.sqrt(kappa) - 1) / (np.sqrt(kappa) + 1),
    }[server]
    rho = float(rate(np.log(kappa), server))
    assert rho == pytest.approx(printed, abs=1e-14)
    assert float(log_kappa_of(rho, server)) == pytest.approx(np.log(kappa), rel=1e-8, abs=1e-13)
    setting = tune(server, 3 * kappa, 3.0)
    assert setting.rho == pytest.approx(rho, abs=1e-15)
    # The spectral radius on [mu, L] is rho: nowhere more, and attained.
    radius = spectral_radius(server, setting.eta, setting.momentum, np.geomspace(3.0, 3 * kappa, 200))
    # A double root is only resolved to the square root of the rounding error.
    assert radius == pytest.approx(rho, abs=5e-7)


@settings(deadline=None, max_examples=60)
@given(kappa=KAPPAS, T=st.integers(1, 400), server=st.sampled_from(SERVERS))
def test_round_t_obeys_rho_to_the_t_with_the_transient_factor(kappa: float, T: int, server: str) -> None:
    """Printed (14) without momentum; 1 + (1 + rho) T for heavy ball, 1 + (1 - rho) T for Nesterov; all attained."""
    setting = tune(server, kappa, 1.0)
    eigenvalues = np.concatenate([np.linspace(1, kappa, 500), np.geomspace(1, kappa, 500)])
    worst = np.abs(error_factors(server, setting.eta, setting.momentum, eigenvalues, T)).max()
    bound = float(transient(setting.rho, T, server)) * setting.rho**T
    # Rounding: T steps at a (nearly) double root.
    assert worst <= bound * (1 + 1e-9) + 1e-11 * T
    assert worst >= bound * (1 - 1e-7) - 1e-11 * T


def test_printed_theorem_3_is_false_with_momentum() -> None:
    setting = tune("heavy-ball", 100.0, 1.0)
    worst = abs(float(error_factors("heavy-ball", setting.eta, setting.momentum, np.array(100.0), 10)))
    assert worst / setting.rho**10 == pytest.approx(1 + (1 + setting.rho) * 10, rel=1e-9)
    assert worst / setting.rho**10 > 19
    nesterov = tune("nesterov", 100.0, 1.0)
    worst = abs(float(error_factors("nesterov", nesterov.eta, nesterov.momentum, np.array(1.0), 10)))
    assert worst / nesterov.rho**10 == pytest.approx(1 + (1 - nesterov.rho) * 10, rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), T=st.integers(1, 60), server=st.sampled_from(SERVERS))
def test_theorem_3_on_random_surrogates(seed: int, T: int, server: str, problem: Callable) -> None:
    clients, gamma, alpha, rng = problem(seed)
    theta = All(int(rng.integers(1, 20)))
    setting = tune(server, *clients.curvature_bounds(gamma, theta, alpha))
    minimiser, H = clients.minimiser(gamma, theta, alpha), clients.hessian(gamma, theta, alpha)
    x0 = rng.standard_normal(len(minimiser))
    start = np.linalg.norm(x0 - minimiser)
    left = np.linalg.norm(run(server, setting, H, minimiser, x0, T) - minimiser)
    assert left <= float(transient(setting.rho, T, server)) * setting.rho**T * start + 1e-12 * (1 + start)


def test_extreme_condition_numbers_stay_finite() -> None:
    logs = np.concatenate([[0.0, 1e-300, 1e-16], np.linspace(0.1, 720, 500), [1e6]])
    for server in SERVERS:
        with np.errstate(over="raise", invalid="raise"):
            rho = rate(logs, server)
        assert ((rho >= 0) & (rho <= 1)).all()
        assert (np.diff(rho) >= -1e-15).all()
        assert rho[2] > 0


def test_refusals() -> None:
    with pytest.raises(InputError, match="did you mean 'heavy-ball'"):
        rate(1.0, "heavyball")
    for wrong in (-1e-9, np.nan):
        with pytest.raises(InputError, match="kappa >= 1"):
            rate(wrong)
    with pytest.raises(InputError, match="0 <= rho < 1"):
        log_kappa_of(1.0)
    with pytest.raises(InputError, match="mu > 0"):
        tune("none", 1.0, -1.0)

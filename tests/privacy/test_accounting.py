"""Epsilon: published values, a second implementation, closed forms, and what must hold for any accountant."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

import parley as pl
from parley.core.errors import InputError
from parley.privacy.accounting import Mechanism, least_multiplier
from parley.privacy.plan import privacy_plan


@pytest.mark.parametrize(
    ("rate", "multiplier", "releases", "delta", "accountant", "published"),
    [
        # TensorFlow Privacy, compute_dp_sgd_privacy_test.py: 60000 samples, batch 150, 15 epochs; 100000, 100, 30.
        (150 / 60000, 1.3, 6000, 1e-5, "rdp", 0.7242234026109595),
        (100 / 100000, 1.0, 30000, 1e-7, "rdp", 1.4154988495444842),
        # The same file, test_compute_dp_sgd_example_privacy: Poisson sampling with chance 0.01, 1.2 epochs.
        (0.01, 0.7, 120, 1e-5, "rdp", 3.2392676),
        (0.01, 0.7, 120, 1e-5, "pld", 2.4612381),
        (1.0, 0.7, 2, 1e-5, "pld", 10.1224946),
        (1.0, 0.7, 2, 1e-5, "rdp", 10.8602036),
        # Its privacy statement: n = 10000, batch 64, 5 epochs, noise 2 on a doubled sensitivity.
        (0.0064, 1.0, 782, 1e-6, "pld", 1.199),
        (0.0064, 1.0, 782, 1e-6, "rdp", 1.616),
    ],
)
def test_published_values(rate, multiplier, releases, delta, accountant, published):
    assert Mechanism(rate, multiplier, delta, accountant).epsilon(releases) == pytest.approx(published, rel=0.01)


def renyi(rate: float, sigma: float, order: float) -> float:
    """The Renyi divergence of the sampled Gaussian mechanism by numerical integration (Mironov et al., 2019)."""
    x = np.linspace(-15 * sigma, 15 * sigma + order, 200_001)
    ratio = np.logaddexp(np.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * sigma**2))
    density = stats.norm.logpdf(x, scale=sigma) + order * ratio
    return float(special.logsumexp(density) + math.log(x[1] - x[0])) / (order - 1)


def test_the_moments_accountant_of_abadi_et_al():
    """q = 0.01, sigma = 4, 10000 steps, delta = 1e-5: epsilon = 1.26 (CCS 2016, Section 3.2), by moments up to 32."""
    orders = range(2, 34)
    moments = min(10000 * renyi(0.01, 4.0, order) + math.log(1e5) / (order - 1) for order in orders)
    assert moments == pytest.approx(1.26, rel=0.01)
    for accountant in ("rdp", "pld"):  # later conversions are tighter
        assert Mechanism(0.01, 4.0, 1e-5, accountant).epsilon(10000) < moments


@pytest.mark.parametrize(("rate", "sigma", "releases"), [(0.05, 1.5, 200), (0.3, 2.0, 20), (0.01, 0.9, 1000)])
def test_renyi_divergences_agree_with_numerical_integration(rate, sigma, releases):
    delta = 1e-5
    orders = [1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32]
    epsilons = [  # Canonne, Kamath and Steinke (2020), Proposition 12
        releases * renyi(rate, sigma, a) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in orders
    ]
    assert Mechanism(rate, sigma, delta, "rdp").epsilon(releases) == pytest.approx(min(epsilons), rel=0.01)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.6, 20), st.integers(1, 50))
def test_without_sampling_it_is_the_analytic_gaussian_mechanism(multiplier: float, releases: int):
    """k releases are one with noise sigma / sqrt(k); delta(epsilon) is Balle and Wang's (2018, Theorem 8)."""
    sigma, delta = multiplier / math.sqrt(releases), 1e-5

    def gap(epsilon: float) -> float:
        tail = stats.norm.cdf(0.5 / sigma - epsilon * sigma)
        return tail - math.exp(epsilon + stats.norm.logcdf(-0.5 / sigma - epsilon * sigma)) - delta

    exact = optimize.brentq(gap, 0, 400) if gap(0) > 0 else 0.0
    found = Mechanism(1.0, multiplier, delta).epsilon(releases)
    assert exact - 1e-9 <= found <= exact * 1.002 + 1e-3


@settings(max_examples=10, deadline=None)
@given(st.floats(0.05, 0.5), st.floats(0.8, 4), st.integers(1, 60))
def test_more_rounds_and_larger_cohorts_cost_more_noise_costs_less(rate: float, multiplier: float, releases: int):
    cost = Mechanism(rate, multiplier, 1e-5).epsilon(releases)
    assert cost <= Mechanism(rate, multiplier, 1e-5).epsilon(releases + 1)
    assert cost <= Mechanism(min(1.0, 1.2 * rate), multiplier, 1e-5).epsilon(releases) * (1 + 1e-3)
    assert cost >= Mechanism(rate, 1.2 * multiplier, 1e-5).epsilon(releases) * (1 - 1e-3)
    assert cost <= Mechanism(rate, multiplier, 1e-5, "rdp").epsilon(releases) * (1 + 1e-3)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(("epsilon", "releases", "rate"), [(8.0, 50, 0.2), (1.0, 30, 0.1), (3.0, 20, 1.0)])
def test_the_least_noise_is_within_the_budget_and_a_little_less_is_not(epsilon, releases, rate, accountant):
    mechanism = Mechanism(rate, 1.0, 1e-5, accountant)
    found = least_multiplier(epsilon, releases, mechanism)
    assert Mechanism(rate, found, 1e-5, accountant).epsilon(releases) <= epsilon
    assert Mechanism(rate, 0.995 * found, 1e-5, accountant).epsilon(releases) > epsilon


def test_so_little_noise_that_loss_distributions_do_not_fit_is_charged_by_renyi_divergences():
    little = Mechanism(0.1, 0.001, 1e-5)
    assert little.too_large
    assert little.epsilon(1) == Mechanism(0.1, 0.001, 1e-5, "rdp").epsilon(1) > 1e4


def test_nothing_released_costs_nothing():
    assert Mechanism(0.1, 1.0, 1e-5).epsilon(0) == 0


def test_local_noise_is_charged_for_a_replaced_client_and_without_sampling():
    plan = privacy_plan(pl.Privacy(noise_multiplier=6.0, noise="local"), pl.Sampling(5), 100, 10)
    assert plan.epsilon(10) == Mechanism(1.0, 3.0, 1e-5).epsilon(10)
    solved = privacy_plan(pl.Privacy(epsilon=4.0, noise="local"), pl.Sampling(5), 100, 10)
    assert 3.98 < solved.epsilon(10) <= 4.0


def test_the_noisy_count_is_part_of_the_price():
    """1 / z^2 = 1 / z_sum^2 + 1 / (2 sigma_b)^2 (Andrew et al., 2021, Theorem 1): two Gaussians, charged as one."""
    plan = privacy_plan(pl.Privacy(noise_multiplier=1.1, quantile=0.5, count_noise=3.0), pl.Sampling(10), 100, 10)
    together = (plan.sum_multiplier**-2 + (0.5 / plan.count_deviation) ** 2) ** -0.5
    assert together == pytest.approx(1.1, rel=1e-12)
    assert plan.sum_multiplier > 1.1
    assert plan.epsilon(10) == Mechanism(0.1, 1.1, 1e-5).epsilon(10)


@pytest.mark.parametrize(
    ("given_settings", "sentence"),
    [
        ({}, "privacy.epsilon or privacy.noise_multiplier must be given"),
        ({"noise_multiplier": 0.0}, "privacy.noise_multiplier must be a positive number"),
        ({"epsilon": math.inf}, "privacy.epsilon"),
        ({"epsilon": 1.0, "delta": 1.0}, "privacy.delta must lie between 0 and 1"),
        ({"epsilon": 1.0, "quantile": 1.5}, "privacy.quantile must lie between 0 and 1"),
        ({"epsilon": 1.0, "quantile": 0.5, "noise": "local"}, "needs privacy.noise"),
        ({"epsilon": 1.0, "count_noise": 1.0}, "means nothing without privacy.quantile"),
        ({"epsilon": 1.0, "accountant": "hope"}, "privacy.accountant must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given_settings, sentence):
    with pytest.raises(InputError, match=sentence):
        pl.Privacy(**given_settings)


def test_a_delta_that_promises_nothing_is_refused():
    with pytest.raises(InputError, match=r"promises nothing to 100 clients"):
        privacy_plan(pl.Privacy(epsilon=1.0, delta=0.01), pl.Sampling(), 100, 10)
    with pytest.raises(InputError, match=r"above half the noise multiplier"):
        privacy_plan(pl.Privacy(noise_multiplier=2.0, quantile=0.5, count_noise=0.9), pl.Sampling(), 100, 10)


def test_epsilon_does_not_depend_on_the_order_in_which_it_is_asked():
    mechanism = Mechanism(0.2, 1.0, 1e-5)
    assert np.array_equal([mechanism.epsilon(n) for n in (3, 1, 2)], [mechanism.epsilon(n) for n in (3, 1, 2)])


def test_without_the_package_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r"pip install -c constraints.txt '\.\[privacy\]'"):
        Mechanism(0.123, 1.0, 1e-5).epsilon(1)

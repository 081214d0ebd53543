"""Paper 003's two-layer network: its kernel and gradients, and its bounds against their proofs."""

import numpy as np
import pytest
from scipy.special import erf

from parley.theory.kernel import TwoLayerNTK
from parley_papers.yue2022.two_layer import (
    TwoLayer,
    averaged,
    descended,
    drift_bound,
    evolved,
    flip_bound,
    flips,
    width_bound,
)


@pytest.fixture
def setting() -> tuple[TwoLayer, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 4))
    return TwoLayer.drawn(300, 4, rng), x / np.linalg.norm(x, axis=1, keepdims=True), rng.standard_normal(6)


def test_the_kernel_is_that_of_the_jacobian(setting) -> None:
    net, x, _ = setting
    rows = np.array([net.pull(x, one).ravel() for one in np.eye(6)])
    np.testing.assert_allclose(net.kernel(x), rows @ rows.T, atol=1e-12)
    away = np.random.default_rng(1).standard_normal(net.v.shape)
    small = 1e-7
    slope = (net.moved(small * away)(x) - net.moved(-small * away)(x)) / (2 * small)
    np.testing.assert_allclose(slope, rows @ away.ravel(), rtol=1e-6)


def test_wide_networks_have_the_kernel_of_infinite_width(setting) -> None:
    _, x, _ = setting
    wide = TwoLayer.drawn(200_000, 4, np.random.default_rng(2))
    assert np.abs(wide.kernel(x) - TwoLayerNTK()(x, x)).max() < 0.01


def test_after_one_step_evolution_is_descent_and_a_lone_client_is_everybody(setting) -> None:
    net, x, y = setting
    np.testing.assert_allclose(evolved(net, x, y, 0.1, 1).v, descended(net, x, y, 0.1, 1).v, atol=1e-14)
    np.testing.assert_allclose(averaged(net, [x], [y], 0.1, 5).v, descended(net, x, y, 0.1, 5).v)
    mean = averaged(net, [x[:3], x[3:]], [y[:3], y[3:]], 0.2, 1)  # one step of half the samples at twice the rate
    np.testing.assert_allclose(mean.v, descended(net, x, y, 0.1, 1).v, atol=1e-14)


def test_the_bounds_are_those_of_the_proofs(setting) -> None:
    _, x, _ = setting
    chance = erf(0.05 / np.sqrt(2))
    expected = np.mean([flips(TwoLayer.drawn(300, 4, np.random.default_rng(k)), x, 0.05) for k in range(50)])
    assert expected == pytest.approx(300 * chance, rel=0.05)
    assert 300 * chance <= flip_bound(300, 0.05, 1.0)
    assert drift_bound(6, 0.05, 0.1) == pytest.approx(2 * 6 / 300 * flip_bound(300, 0.05, 0.1))
    assert width_bound(6, 400, 0.1) == pytest.approx(width_bound(6, 100, 0.1) / 2)

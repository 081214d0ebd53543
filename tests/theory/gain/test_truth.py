"""Federation gain of simulated truths (paper 000, Definition 15, Theorems 16 and 17)."""

import numpy as np
import pytest

from parley.core.errors import InputError
from parley.theory import gain
from parley.theory.kernel import GradientSteps, ProximalStep

RNG = np.random.default_rng(0)
METHODS = [GradientSteps(0.05, 1), GradientSteps(0.05, 5), ProximalStep(0.1)]


def federation(heterogeneity: float = 0.0, d: int = 8) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(1)
    designs = [rng.standard_normal((n, d)) for n in (3, 5, 20, 60, 60)]
    shared = rng.standard_normal(d)
    directions = rng.standard_normal((len(designs), d))
    moved = heterogeneity * directions / np.linalg.norm(directions, axis=1, keepdims=True) / np.sqrt(2)
    return designs, list(shared + moved)


@pytest.mark.parametrize("method", METHODS)
def test_expected_gains_are_means_over_draws(method: GradientSteps | ProximalStep) -> None:
    designs, truths = federation(0.5)
    sigma, rounds = 0.5, 40
    exact = gain.expected_gains(designs, truths, sigma, method, [rounds])
    draws = [
        gain.drawn_gains(
            designs,
            truths,
            [X @ m + sigma * RNG.standard_normal(len(X)) for X, m in zip(designs, truths, strict=True)],
            method,
            rounds,
        )
        for _ in range(1500)
    ]
    for j, expected in enumerate(exact):
        assert np.mean([draw[j].local for draw in draws]) == pytest.approx(expected.local, rel=0.1)
        assert np.mean([draw[j].federated for draw in draws]) == pytest.approx(expected.federated, rel=0.1)
        assert expected.ratio == pytest.approx(np.sqrt(expected.squared))


def test_gain_falls_with_heterogeneity_and_is_larger_for_scarce_clients() -> None:
    levels = [0.0, 0.5, 2.0, 8.0]
    gains = np.array(
        [[g.squared for g in gain.expected_gains(*federation(level), 0.5, GradientSteps(0.05, 5))] for level in levels]
    )
    assert (np.diff(gains, axis=0) < 0).all()
    assert (gains[:, 0] > gains[:, 4]).all()
    assert (gains[0] > 1).all()  # without heterogeneity joining pays everyone
    assert gains[3, 4] < 1  # a rich client among strangers


def test_the_infimum_over_rounds_is_no_worse_than_any_round() -> None:
    designs, truths = federation(1.0)
    best = gain.expected_gains(designs, truths, 0.5, GradientSteps(0.05, 5))
    for t in (1, 10, 10**5):
        for one, least in zip(
            gain.expected_gains(designs, truths, 0.5, GradientSteps(0.05, 5), [t]), best, strict=True
        ):
            assert least.federated <= one.federated * 1.01


def test_theorem_16_is_a_lower_bound_up_to_one_constant() -> None:
    # One constant serves all levels of heterogeneity and both kinds of clients.
    for level in (0.0, 0.3, 1.0, 3.0, 10.0):
        designs, truths = federation(level)
        N, spread = sum(map(len, designs)), max(np.linalg.norm(a - b) for a in truths for b in truths)
        for X, truth, g in zip(
            designs, truths, gain.expected_gains(designs, truths, 0.5, GradientSteps(0.05, 5)), strict=True
        ):
            radius = float(np.linalg.norm(truth))
            assert g.squared >= gain.theorem16(len(X), 8, N, 0.5, radius, float(spread), constant=0.25)


def test_thresholds_of_the_paper() -> None:
    assert gain.theorem16_threshold(50, 100, 0.5, 10.0) == pytest.approx(7.07, abs=0.01)
    assert gain.theorem16_threshold(500, 100, 0.5, 10.0) == pytest.approx(0.2236, abs=1e-3)
    # Rich clients gain less the more of the space they see; scarce ones gain N / d in order.
    rich = [gain.theorem17(500, r, 100, 5500, 0.5, 10.0) for r in (25, 50, 100)]
    assert rich[0] > rich[1] > rich[2] == pytest.approx(5500 / 500)


def test_local_risk_without_noise_is_the_unseen_part() -> None:
    X = np.eye(4)[:2]
    assert gain.local_risk(X, [1, 2, 3, 4], 0.0) == pytest.approx(25)
    assert gain.local_risk(np.vstack([X, X]), [1, 2, 3, 4], 1.0) == pytest.approx(25 + 0.5 + 0.5)
    np.testing.assert_allclose(gain.minimum_norm(X, [5.0, 6.0]), [5, 6, 0, 0], atol=1e-14)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="one truth per client"):
        gain.expected_gains([np.eye(2)], [], 0.1, GradientSteps(0.1))
    with pytest.raises(InputError, match="client 0's truth"):
        gain.expected_gains([np.eye(2)], [np.ones(3)], 0.1, GradientSteps(0.1))

"""The theory of functional boosting: optima, transport and bounds against what they mean."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance

from parley.theory.boosting import (
    boost,
    cross_entropy_optimum,
    decreasing,
    function_bound,
    gradient_bound,
    learner_bound,
    lipschitz_extension,
    residual_bound,
    softmax,
    square_optimum,
    support_distance,
    wasserstein,
)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 2.0))
def test_optima_have_gradients_of_zero(seed: int, mu: float):
    random = np.random.default_rng(seed)
    alpha, shares = random.dirichlet(np.ones(5), 3), random.dirichlet(np.ones(4), (3, 5))
    weigh = alpha[:, :, None]
    f = cross_entropy_optimum(shares, alpha, mu)
    np.testing.assert_allclose((weigh * (softmax(f) - shares + mu * f)).sum(0), 0, atol=1e-12)
    g = square_optimum(shares, alpha, mu)
    np.testing.assert_allclose((weigh * (g - shares + mu * g)).sum(0), 0, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 1.0), st.booleans(), st.booleans())
def test_no_step_leaves_its_bound(seed: int, gamma: float, largest: bool, adversarial: bool):
    """(24), (25) and Lemma D.1 for any answers within (1 - gamma) ||phi|| of phi on the client's inputs."""
    random = np.random.default_rng(seed)
    alpha, shares, mu = random.dirichlet(np.ones(4), 3), random.dirichlet(np.ones(3), (3, 4)), 0.6

    def oracle(phi, g):
        noise = random.normal(size=phi.shape) if adversarial else -phi
        size = [np.sqrt((alpha[:, :, None] * part**2).sum((1, 2)))[:, None, None] for part in (noise, phi)]
        if largest:
            size = [np.linalg.norm(part, axis=-1).max(1)[:, None, None] for part in (noise, phi)]
        return phi + (1 - gamma) * noise * np.divide(size[1], size[0], out=np.zeros_like(size[0]), where=size[0] > 0)

    course = boost(
        alpha,
        lambda g: softmax(g) - shares,
        oracle,
        rounds=5,
        local=4,
        mu=mu,
        steps=decreasing(4, mu, 4),
        outputs=3,
        largest=largest,
    )
    assert course.gamma == pytest.approx(gamma, abs=1e-9)
    assert course.residual <= residual_bound(course.gradient, gamma) + 1e-9
    assert course.learner <= learner_bound(course.gradient, gamma) + 1e-9
    if largest:
        assert course.function <= function_bound(course.gradient, gamma, mu) + 1e-9


def test_the_residual_telescopes():
    """sum_k h^k = sum_k grad - Delta^K, so a step of constant size moves as if the oracle were exact but for Delta."""
    random = np.random.default_rng(0)
    labels, log = random.normal(size=(2, 3, 1)), []

    def oracle(phi, g):
        log.append((phi, 0.3 * phi, g - labels))
        return 0.3 * phi

    boost(
        np.full((2, 3), 1 / 3),
        lambda g: g - labels,
        oracle,
        rounds=1,
        local=7,
        mu=0.2,
        steps=lambda t, k: 0.4,
        outputs=1,
    )
    total, gradients = sum(h for _, h, _ in log), sum(gradient for _, _, gradient in log)
    np.testing.assert_allclose(total, gradients - (log[-1][0] - log[-1][1]), atol=1e-12)


def test_transport_on_the_line():
    random = np.random.default_rng(0)
    a, b = random.normal(size=(7, 1)), random.normal(size=(7, 1)) + 1
    assert wasserstein(a, b) == pytest.approx(wasserstein_distance(a[:, 0], b[:, 0]))
    assert wasserstein(a, b, 2) == pytest.approx(np.sqrt(np.square(np.sort(a, 0) - np.sort(b, 0)).mean()))
    assert support_distance([np.array([[0.0], [1.0]]), np.array([[0.5], [3.0]])]) == 2.0
    assert gradient_bound([a, a], 3.0, 2.0) == pytest.approx(np.sqrt(8.0))
    assert gradient_bound([a, a + 1], 3.0, 0.0) == pytest.approx(np.sqrt(2 * 9 * 0.5))


def test_the_extension_is_the_smallest_cone():
    points, labels = np.array([[0.0], [1.0], [3.0]]), np.array([[0.0], [2.0], [1.0]])
    np.testing.assert_allclose(
        lipschitz_extension(points, labels, np.array([[0.0], [1.0], [3.0], [-1.0], [2.0]])),
        [[0.0], [2.0], [1.0], [2.0], [3.0]],
    )


def test_steps_shrink_by_at_most_all():
    steps = decreasing(4, 0.5, 3)
    assert steps(0, 1) == 2.0
    assert steps(2, 1) == pytest.approx(4 / (0.5 * 8))

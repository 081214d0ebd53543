"""Finite feature spaces: against sample space, Theorem 12, Corollaries 13-14 and minibatches of paper 000."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory import kernel as k

SEEDS = st.integers(0, 10**6)
few = settings(deadline=None, max_examples=25)


def draw(seed: int) -> tuple[list[np.ndarray], k.KernelStep, np.random.Generator]:
    """Unbalanced designs, some with n_i < d, of one point or with equal rows."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 7))
    designs = [rng.standard_normal((n, d)) for n in rng.choice([1, 2, 3, 8, 20], int(rng.integers(1, 5)))]
    if rng.random() < 0.3:
        designs[0] = np.vstack([designs[0], designs[0][:1]])
    if rng.random() < 0.3:
        designs[-1][:, : int(rng.integers(d + 1))] = 0  # features this client has not, perhaps all of them
    largest = max(np.linalg.norm(X, 2) ** 2 / len(X) for X in designs) or 1.0
    if rng.random() < 0.6:
        return designs, k.GradientSteps(float(rng.uniform(0.05, 0.99) / largest), int(rng.integers(1, 12))), rng
    return designs, k.ProximalStep(float(rng.uniform(0.05, 5) / largest)), rng


def simulate(designs: list[np.ndarray], ys: list[np.ndarray], method: k.KernelStep, theta: np.ndarray) -> np.ndarray:
    """One round from the definitions."""
    N, total = sum(map(len, designs)), np.zeros_like(theta)
    for X, y in zip(designs, ys, strict=True):
        local, n = theta.copy(), len(X)
        if isinstance(method, k.GradientSteps):
            for _ in range(method.s):
                local = local - method.eta / n * X.T @ (X @ local - y)
        else:
            local = np.linalg.solve(X.T @ X / n + np.eye(len(theta)) / method.eta, X.T @ y / n + theta / method.eta)
        total += n / N * local
    return total


@few
@given(seed=SEEDS)
def test_rounds_closed_form_and_limit(seed: int) -> None:
    designs, method, rng = draw(seed)
    d = designs[0].shape[1]
    ys = [rng.standard_normal(len(X)) for X in designs]
    start = rng.standard_normal(d)
    space = k.FeatureSpace.of(k.Identity(), designs, ys, method)
    theta = start
    for t in range(1, 6):
        theta = simulate(designs, ys, method, theta)
        np.testing.assert_allclose(space.theta(t, start), theta, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(space.step(start), simulate(designs, ys, method, start), rtol=1e-10, atol=1e-10)
    limit = space.limit(start)
    np.testing.assert_allclose(simulate(designs, ys, method, limit), limit, atol=1e-9 * max(1, np.abs(limit).max()))
    slow = space.spectrum.update
    if slow[slow > 1e-12].min(initial=1.0) * method.eta > 1e-4:
        np.testing.assert_allclose(space.theta(10**6, start), limit, atol=1e-8 * max(1, np.abs(limit).max()))


@few
@given(seed=SEEDS)
def test_it_is_sample_space_seen_from_the_features(seed: int) -> None:
    designs, method, rng = draw(seed)
    ys = [rng.standard_normal(len(X)) for X in designs]
    space = k.FeatureSpace.of(k.Identity(), designs, ys, method)
    federation = k.KernelFederation.of(k.Linear(), designs, method)
    assert space.gamma == pytest.approx(federation.gamma, rel=1e-10)
    exact = k.exact_spectrum(federation)
    count = len(space.spectrum.update)
    np.testing.assert_allclose(space.spectrum.update, exact.update[:count], atol=1e-10)
    np.testing.assert_allclose(space.spectrum.kernel, exact.kernel[:count], atol=1e-10)
    np.testing.assert_allclose(exact.update[count:], 0, atol=1e-10)
    run = k.trajectory(federation, ys)
    for t in (1, 30):
        np.testing.assert_allclose(np.vstack(designs) @ space.theta(t), run.at(t), atol=1e-9)


@few
@given(seed=SEEDS)
def test_theorem_12(seed: int) -> None:
    designs, method, rng = draw(seed)
    d = designs[0].shape[1]
    truths = [rng.standard_normal(d) for _ in designs]
    start = rng.standard_normal(d)
    means = [X @ truth for X, truth in zip(designs, truths, strict=True)]
    space = k.FeatureSpace.of(k.Identity(), designs, means, method)
    rounds = np.array([1, 5, 50, 5000])
    bar, sigma = space.limit(start), 0.7
    if not space.rho:
        assert np.isinf(k.theorem12(space, rounds, 1.0, sigma)).all()
        assert np.isinf(k.theorem12_distance(space, 1.0))
        return
    bias = np.array([((space.theta(int(t), start) - bar) ** 2).sum() for t in rounds])
    exact = bias + space.variance(rounds, sigma)
    bound = k.theorem12(space, rounds, float(np.linalg.norm(start - bar)), sigma)
    assert (exact <= bound * (1 + 1e-9)).all()
    assert space.limit_variance(sigma) <= k.theorem12(space, 10**12, 0.0, sigma) * (1 + 1e-9)
    # (27): theta_bar balances what the clients' truths pull.
    np.testing.assert_allclose(space.update @ bar, space.drive, atol=1e-9)
    for own in truths:
        delta = np.linalg.norm(np.concatenate([X @ (t - own) for X, t in zip(designs, truths, strict=True)]))
        assert np.linalg.norm(bar - own) <= k.theorem12_distance(space, float(delta)) * (1 + 1e-9) + 1e-12 * (
            1 + 1 / space.rho
        )


def test_variance_is_that_of_the_runs() -> None:
    designs, method, _ = draw(5)
    rng = np.random.default_rng(0)
    draws, sigma = 40_000, 0.3
    ys = [sigma * rng.standard_normal((len(X), draws)) for X in designs]
    space = k.FeatureSpace.of(k.Identity(), designs, ys, method)
    for t in (1, 20):
        np.testing.assert_allclose((space.theta(t) ** 2).sum(axis=0).mean(), space.variance(t, sigma), rtol=0.03)
    np.testing.assert_allclose((space.limit() ** 2).sum(axis=0).mean(), space.limit_variance(sigma), rtol=0.03)


def test_unbiased_although_not_stationary() -> None:
    rng = np.random.default_rng(0)
    designs = [rng.standard_normal((n, 4)) for n in (3, 10, 40)]
    truth = rng.standard_normal(4)
    space = k.FeatureSpace.of(k.Identity(), designs, [X @ truth for X in designs], k.GradientSteps(0.05, 10))
    np.testing.assert_allclose(space.limit(), truth, atol=1e-10)
    noisy = [X @ truth + rng.standard_normal(len(X)) for X in designs]
    limit = k.FeatureSpace.of(k.Identity(), designs, noisy, k.GradientSteps(0.05, 10)).limit()
    stacked = np.vstack(designs)
    assert np.linalg.norm(stacked.T @ (stacked @ limit - np.concatenate(noisy))) > 0.1


def test_corollaries_13_and_14_where_rho_is_large_enough() -> None:
    rng = np.random.default_rng(0)
    d, sigma, t = 20, 0.5, np.array([1, 20, 400])
    # 13: second moments I, so alpha = 1; the condition rho_N >= alpha / 2 is what "N >= c_1 d" buys.
    designs = [rng.standard_normal((n, d)) for n in (10, 30, 200, 400)]
    # 14: random coordinate subspaces of dimension r = 5 with orthonormal rows scaled to norm sqrt(d) (Example 1).
    spaces = [np.sqrt(d) * np.eye(d)[rng.permutation(d)[:5]] for _ in range(60)]
    for parts, alpha, nu in ((designs, 1.0, None), (spaces, 1.0, 1.0)):
        truths = [rng.standard_normal(d) * 0.1 + 1 for _ in parts]
        method = k.GradientSteps(0.1, 5) if nu is None else k.GradientSteps(0.1, 2)
        space = k.FeatureSpace.of(k.Identity(), parts, [X @ m for X, m in zip(parts, truths, strict=True)], method)
        assert space.rho >= alpha / 2
        bar = space.limit()
        exact = np.array([((space.theta(int(r)) - bar) ** 2).sum() for r in t]) + space.variance(t, sigma)
        corollary = k.corollary13 if nu is None else k.corollary14
        assert (exact <= corollary(method, space.gamma, t, np.linalg.norm(bar), sigma, d, space.N, alpha)).all()
        spread = max(np.linalg.norm(a - b) for a in truths for b in truths)
        distance = max(np.linalg.norm(bar - own) for own in truths)
        if nu is None:
            assert distance <= k.corollary13_distance(space.kappa, spread, constant=2.0)
        else:
            assert distance <= k.corollary14_distance(space.kappa, spread, 1.0, 1.0, nu, 60, d, space.N)
            assert k.coupon_samples(nu, d) < space.N


def test_printed_corollaries() -> None:
    method = k.GradientSteps(0.2, 3)
    kappa = 0.5 * 3 / (1 - 0.5**3)
    shrink = (1 - 3 * 0.2 * 0.4 / (2 * kappa)) ** (2 * 5)  # (28) with the alpha it lacks, (30)
    expected = shrink * 2.0**2 + 0.7**2 * 2 * kappa * 6 / (50 * 0.4)
    assert k.corollary13(method, 0.5, 5, 2.0, 0.7, 6, 50, 0.4) == pytest.approx(expected)
    assert k.corollary14(method, 0.5, 5, 2.0, 0.7, 6, 50, 0.4) == pytest.approx(expected)
    assert k.corollary13_distance(4.0, 3.0, 0.5) == pytest.approx(3.0)
    assert k.corollary14_distance(2.0, 3.0, 0.5, 1.5, 4.0, 5, 6, 50) == pytest.approx(
        3 * np.sqrt(2 * 2 * 1.5 * 4 * 5 * 6 / (0.5 * 50))
    )
    space = k.FeatureSpace.of(k.Identity(), [2 * np.eye(2)], [np.zeros(2)], method)  # A = 2 I, rho = 2, gamma = 0.4
    kappa = 0.4 * 3 / (1 - 0.6**3)
    shrink = (1 - 3 * 0.2 * 2 / kappa) ** (2 * 5)
    assert k.theorem12(space, 5, 2.0, 0.7) == pytest.approx(shrink * 4 + 0.49 * kappa * 2 / (2 * 2))
    assert k.theorem12_distance(space, 3.0) == pytest.approx(3 * np.sqrt(kappa / (2 * 2)))


def test_corollary_13_for_weak_designs() -> None:
    """Second moments alpha I with alpha = 1/4: the printed contraction, which lacks alpha, is too fast."""
    rng = np.random.default_rng(0)
    designs = [rng.standard_normal((n, 10)) / 2 for n in (5, 100, 300)]
    truth, method, t = rng.standard_normal(10), k.GradientSteps(0.1, 1), np.array([1, 10, 40])
    space = k.FeatureSpace.of(k.Identity(), designs, [X @ truth for X in designs], method)
    assert space.rho >= 0.25 / 2
    exact = np.array([((space.theta(int(r)) - truth) ** 2).sum() for r in t])
    start = float(np.linalg.norm(truth))
    assert (exact <= k.corollary13(method, space.gamma, t, start, 0.0, 10, space.N, 0.25)).all()
    printed = (1 - 0.1 / (2 * space.kappa)) ** (2 * t) * start**2
    assert (exact > printed).all()


def test_gradient_dissimilarity_grows_with_the_root_of_d() -> None:
    rng = np.random.default_rng(0)

    def B(d: int) -> float:
        return k.gradient_dissimilarity([rng.standard_normal((1, d)) for _ in range(50 * d)])

    values = np.array([B(d) for d in (4, 16, 36)])
    np.testing.assert_allclose(np.polyfit(np.log([4, 16, 36]), np.log(values), 1)[0], 0.5, atol=0.12)
    assert k.gradient_dissimilarity([np.eye(3)] * 4) == pytest.approx(1)


@few
@given(seed=SEEDS)
def test_minibatches(seed: int) -> None:
    designs, method, rng = draw(seed)
    ys = [rng.standard_normal(len(X)) for X in designs]
    start = rng.standard_normal(designs[0].shape[1])
    full = k.minibatch_round(designs, ys, method, 10**6)
    np.testing.assert_allclose(full(start), simulate(designs, ys, method, start), rtol=1e-10, atol=1e-10)
    # Batches of two, step by step.
    expected, N = np.zeros_like(start), sum(map(len, designs))
    for X, y in zip(designs, ys, strict=True):
        local, step = start.copy(), method.eta / len(X)
        for _ in range(method.s):
            for b in range(0, len(X), 2):
                A, r = X[b : b + 2], y[b : b + 2]
                if isinstance(method, k.GradientSteps):
                    local = local - step * A.T @ (A @ local - r)
                else:
                    local = np.linalg.solve(np.eye(len(local)) + step * A.T @ A, local + step * A.T @ r)
        expected += len(X) / N * local
    two = k.minibatch_round(designs, ys, method, 2)
    np.testing.assert_allclose(two(start), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(two.power(5)(start), two(two(two(two(two(start))))), rtol=1e-8, atol=1e-8)
    if np.linalg.cond(np.eye(len(start)) - two.matrix) < 1e6:
        np.testing.assert_allclose(two(two.limit()), two.limit(), atol=1e-7)


def test_bad_input_is_refused() -> None:
    X, y = np.ones((2, 3)), np.ones(2)
    cases = [
        (
            lambda: k.FeatureSpace.of(k.Identity(), [X], [np.array([1.0, np.nan])], k.GradientSteps(0.1)),
            "targets has a NaN",
        ),
        (lambda: k.FeatureSpace.of(k.Identity(), [X], [np.ones(3)], k.GradientSteps(0.1)), "2 samples but targets"),
        (lambda: k.FeatureSpace.of(k.Identity(), [X, np.ones((2, 2))], [y, y], k.GradientSteps(0.1)), "another number"),
        (lambda: k.FeatureSpace.of(k.Identity(), [], [], k.GradientSteps(0.1)), "at least one client"),
        (lambda: k.FeatureSpace.of(k.Identity(), [X], [y], k.GradientSteps(0.5)), "gamma"),
        (lambda: k.FeatureSpace.of(k.Identity(), [X], [y], k.GradientSteps(0.1)).theta(1, np.ones(2)), "theta_0"),
        (lambda: k.minibatch_round([X], [y], k.GradientSteps(0.1), 0), "whole number of samples"),
        (lambda: k.minibatch_round([X], [y], k.GradientSteps(0.1), 1.5), "whole number of samples"),
        (lambda: k.FeatureSpace.of(k.Identity(), [X, X], [y], k.GradientSteps(0.1)), "one target array per client"),
        (lambda: k.FeatureSpace.of(k.Identity(), [X], [y], k.GradientSteps(0.1)).theta([1, 2]), "one round at a time"),
        (lambda: k.gradient_dissimilarity([]), "at least one client"),
        (lambda: k.gradient_dissimilarity([np.zeros((2, 2))]), "not zero"),
        (lambda: k.minibatch_round([X], [], k.GradientSteps(0.1), 1), "one target array"),
        (lambda: k.minibatch_round([X], [y], k.GradientSteps(0.1), 1).limit(), "no unique fixed point"),
        (lambda: k.corollary13(k.GradientSteps(0.1), 0.1, 1, 1.0, 1.0, 2, 10, 0.0), "alpha"),
    ]
    for call, text in cases:
        with pytest.raises(InputError, match=text):
            call()

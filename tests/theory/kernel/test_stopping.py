"""The stopping rule (23) of paper 000: where it stops, how far that is from the best round, and what it promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory import kernel as k

SIGMA = 0.5


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_T_is_the_last_round_that_meets_the_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    N = int(rng.integers(1, 200))
    eigenvalues = rng.uniform(0, 1, N) ** rng.uniform(1, 8)
    method = k.GradientSteps(float(rng.uniform(0.01, 0.9)), int(rng.integers(1, 9)))
    sigma, norm = float(10 ** rng.uniform(-1.5, 1)), float(10 ** rng.uniform(-1, 1))
    stop = k.stopping_round(eigenvalues, N, method, sigma, norm)

    def meets(t: int) -> bool:
        time = method.eta * method.s * t
        level = norm / (np.sqrt(2 * np.e) * sigma * time)
        return bool(k.rademacher(eigenvalues, N, 1 / np.sqrt(time)) <= level * (1 + 1e-9))

    assert stop.T == 0 or meets(stop.T)
    assert not meets(stop.T + 1) or pytest.approx(stop.time / (method.eta * method.s), rel=1e-6) == stop.T + 1


def kernel_with_decay(x: np.ndarray, beta: float) -> k.Kernel:
    """min(x, z) for beta = 1; otherwise sum_l l^(-2 beta) 2 cos(pi l x) cos(pi l z) over the points x."""
    if beta == 1:
        return k.Sobolev()
    order = np.arange(1, 4 * len(x) + 1)
    features = np.sqrt(2) * np.cos(np.pi * np.outer(x, order)) * order**-beta
    return k.Precomputed(features @ features.T)


def stopped(N: int, beta: float, roughness: float, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Errors at T, and T over the best round, for random f* of norm 1 with coefficients of order i^-roughness."""
    rng = np.random.default_rng(seed)
    x = (np.arange(N) + 0.5) / N
    kernel = kernel_with_decay(x, beta)
    points = x if beta == 1 else np.arange(N)
    clients = np.split(points[rng.permutation(N)], np.sort(rng.choice(np.arange(1, N), 5, replace=False)))
    largest = max(np.linalg.norm(kernel(c, c), 2) / len(c) for c in clients)
    federation = k.KernelFederation.of(kernel, clients, k.GradientSteps(0.1 / largest, 3))
    values, vectors = np.linalg.eigh(federation.gram.dense)
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    T = k.stopping_round(values, N, federation.method, SIGMA).T
    rounds = np.unique(np.append(np.geomspace(1, 50 * T, 150).round(), T))
    basis = k.exact_basis(federation)
    variance = k.expected_error(federation, np.zeros(N), SIGMA, basis=basis).variance(rounds)
    errors, ratios = [], []
    for _ in range(draws):
        theta = rng.standard_normal(N) * np.arange(1, N + 1) ** -roughness
        theta /= np.linalg.norm(theta)
        f = np.sqrt(N) * vectors @ (np.sqrt(values) * theta)
        total = variance + k.expected_error(federation, f, 0.0, basis=basis).bias(rounds)
        errors.append(total[rounds == T][0])
        ratios.append(T / rounds[total.argmin()])
    return np.array(errors), np.array(ratios)


@pytest.mark.parametrize("beta", [1.0, 1.5, 2.0])
def test_the_rule_has_the_minimax_rate_and_stops_near_the_best_round(beta: float) -> None:
    # i^-0.6 is about as rough as a function of finite norm can be: sum i^-1.2 converges, sum i^-1 does not.
    sizes = (64, 128, 256, 512)
    runs = [stopped(N, beta, 0.6, 8, seed) for seed, N in enumerate(sizes)]
    slope = np.polyfit(np.log(sizes), [np.log(np.median(errors)) for errors, _ in runs], 1)[0]
    assert slope == pytest.approx(-2 * beta / (2 * beta + 1), rel=0.15)
    ratios = np.concatenate([ratios for _, ratios in runs])
    assert 0.5 <= np.median(ratios) <= 2


def test_smooth_truths_and_other_norms_move_the_best_round() -> None:
    # What the rule cannot know: a white f* of norm 1 (nearly no signal) is best left after a few rounds.
    assert np.median(stopped(256, 1.0, 0.0, 4, 0)[1]) > 5
    eigenvalues = np.arange(1, 500) ** -2.0
    method = k.GradientSteps(0.5, 2)
    stops = [k.stopping_round(eigenvalues, 499, method, SIGMA, norm) for norm in (0.1, 1.0, 10.0)]
    assert stops[0].T < stops[1].T < stops[2].T
    # Only sigma / norm matters.
    assert k.stopping_round(eigenvalues, 499, method, SIGMA / 10).T == stops[2].T
    assert stops[1].error == pytest.approx(1 / (0.5 * 2 * stops[1].T), rel=0.02)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 2.0])
def test_sigma_is_estimated(sigma: float) -> None:
    rng = np.random.default_rng(3)
    clients = [rng.uniform(0, 1, n) for n in (50, 150, 200)]
    federation = k.KernelFederation.of(k.RBF(0.2), clients, k.GradientSteps(0.5, 2))
    truth = np.sin(5 * federation.samples.x[:, 0])
    estimates = [k.estimate_sigma(federation, truth + sigma * rng.standard_normal(400)) for _ in range(10)]
    np.testing.assert_allclose(np.mean(estimates), sigma, rtol=0.05)
    assert np.std(estimates) < 0.1 * sigma


def test_bad_questions() -> None:
    method = k.GradientSteps(0.5)
    for eigenvalues, sigma, norm in (([0.0], 1.0, 1.0), ([1.0], 0.0, 1.0), ([np.nan], 1.0, 1.0), ([1.0], 1.0, 0.0)):
        with pytest.raises(InputError):
            k.stopping_round(eigenvalues, 5, method, sigma, norm)
    # So much noise that not even one round is worth it.
    assert k.stopping_round([1.0], 5, method, 100.0).T == 0
    rng = np.random.default_rng(0)
    tiny = k.KernelFederation.of(k.Laplace(1e-6), [rng.uniform(0, 1, 30)], method)
    with pytest.raises(InputError, match="interpolates"):
        k.estimate_sigma(tiny, rng.standard_normal(30))

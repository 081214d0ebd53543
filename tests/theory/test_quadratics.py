"""Theorems 1 and 2, Lemmas 1, 2 and 7 to 11 of paper 001 as properties over random problems."""

import ast
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import parley.theory
from parley.core.errors import InputError
from parley.theory.surrogate import All, Last, Quadratics, as_theta, kernel_features

SEEDS = st.integers(0, 10**6)


def thetas(rng: np.random.Generator) -> list[list[float]]:
    K = int(rng.integers(1, 12))
    return [[1.0] * K, [0.0] * (K - 1) + [1.0], [*rng.uniform(0, 2, K), 0.5]]


def client_update(
    A: np.ndarray, c: np.ndarray, x: np.ndarray, alpha: float, gamma: float, theta: list[float]
) -> np.ndarray:
    """Algorithm 2 with full gradients, step by step."""
    local, sent = x.copy(), np.zeros_like(x)
    for weight in theta:
        g = A @ (local - c) + alpha * (local - x)
        local = local - gamma * g
        sent += weight * g
    return sent


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS)
def test_theorem_1_the_message_is_the_surrogate_gradient(seed: int, problem: Callable) -> None:
    clients, gamma, alpha, rng = problem(seed)
    x = rng.standard_normal(clients.c.shape[1])
    for theta in thetas(rng):
        sent = np.stack(
            [client_update(A, c, x, alpha, gamma, theta) for A, c in zip(clients.A, clients.c, strict=True)]
        )
        scale = clients.L * sum(theta) * (np.linalg.norm(x) + clients.C)
        np.testing.assert_allclose(
            clients.client_gradients(x, gamma, theta, alpha), sent, rtol=1e-10, atol=1e-12 * scale
        )
        np.testing.assert_allclose(
            clients.gradient(x, gamma, theta, alpha), clients.p @ sent, rtol=1e-10, atol=1e-12 * scale
        )


def test_lemma_7_and_theorem_1_in_expectation_with_independent_batches() -> None:
    """Exact means over all sequences of single examples, one drawn independently per step: E[g_k], and their sum."""
    rng = np.random.default_rng(0)
    X, y, x = rng.standard_normal((3, 2)), rng.standard_normal(3), rng.standard_normal(2)
    clients = Quadratics.from_least_squares([X], [y])
    gamma, alpha, K = 0.05, 0.3, 4
    means = np.zeros((K, 2))
    for draws in np.ndindex(*(3,) * K):
        local = x.copy()
        for k, example in enumerate(draws):
            g = X[example] * (X[example] @ local - y[example]) + alpha * (local - x)
            local = local - gamma * g
            means[k] += g / 3**K
    A, c = clients.A[0], clients.c[0]
    step = np.eye(2) - gamma * (A + alpha * np.eye(2))
    for k in range(K):
        expected = np.linalg.matrix_power(step, k) @ A @ (x - c)  # (21) with the proximal term, as in (26)
        np.testing.assert_allclose(means[k], expected, rtol=1e-10)
        np.testing.assert_allclose(clients.gradient(x, gamma, Last(k + 1), alpha), means[k], rtol=1e-10)
    np.testing.assert_allclose(clients.gradient(x, gamma, All(K), alpha), means.sum(axis=0), rtol=1e-10)


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS, K=st.integers(0, 8), proximal=st.booleans())
def test_theorem_2_maml_is_theta_2k_plus_1(seed: int, K: int, proximal: bool, problem: Callable) -> None:
    """The chain rule through each step of h = f_i + alpha/2 ||. - centre||^2, the centre held fixed at x."""
    clients, gamma, alpha, rng = problem(seed)
    alpha = alpha if proximal else 0.0
    x = rng.standard_normal(clients.c.shape[1])
    meta = []
    for A, c in zip(clients.A, clients.c, strict=True):
        local, jacobian = x.copy(), np.eye(len(x))
        for _ in range(K):
            local = local - gamma * (A @ (local - c) + alpha * (local - x))
            jacobian = jacobian - gamma * (A + alpha * np.eye(len(x))) @ jacobian
        meta.append(jacobian.T @ (A @ (local - c) + alpha * (local - x)))
    expected = clients.client_gradients(x, gamma, Last(2 * K + 1), alpha)
    np.testing.assert_allclose(np.stack(meta), expected, rtol=1e-10, atol=1e-12 * clients.L * (np.linalg.norm(x) + 1))


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS)
def test_lemma_9_spectra_of_the_distortion_matrices(seed: int, problem: Callable) -> None:
    """Eq. (6) by matrix powers; eigenvalues (29) of Q_i and (30) of Q_i A_i, with the eigenvectors of A_i."""
    clients, gamma, alpha, rng = problem(seed)
    identity = np.eye(clients.c.shape[1])
    for theta in thetas(rng):
        steps = [identity - gamma * (A + alpha * identity) for A in clients.A]
        direct = np.stack([sum(t * np.linalg.matrix_power(M, k) for k, t in enumerate(theta)) for M in steps])
        Q = clients.distortion(gamma, theta, alpha)
        np.testing.assert_allclose(Q, direct, rtol=1e-10, atol=1e-12 * sum(theta))
        lam, V = clients.eigenvalues, clients.eigenvectors
        spectrum = sum(t * (1 - gamma * (lam + alpha)) ** k for k, t in enumerate(theta))
        np.testing.assert_allclose(np.exp(clients.log_distortion(gamma, theta, alpha)), spectrum, rtol=1e-10)
        hessians = clients.client_hessians(gamma, theta, alpha)
        scale = clients.L * sum(theta)
        np.testing.assert_allclose(hessians, direct @ clients.A, rtol=1e-10, atol=1e-12 * scale)
        np.testing.assert_allclose(hessians @ V, V * (spectrum * lam)[:, None, :], rtol=1e-10, atol=1e-11 * scale)


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS)
def test_lemma_1_distortion_is_positive_definite_and_the_surrogate_strongly_convex(
    seed: int, problem: Callable
) -> None:
    clients, gamma, alpha, rng = problem(seed)
    for theta in thetas(rng):
        Q = clients.distortion(gamma, theta, alpha)
        np.testing.assert_allclose(Q, np.swapaxes(Q, 1, 2), rtol=1e-12, atol=1e-14 * sum(theta))
        assert np.isfinite(clients.log_distortion(gamma, theta, alpha)).all()  # every eigenvalue of Q_i is above zero
        assert (np.linalg.eigvalsh(Q) > -1e-13 * sum(theta)).all()
        if len(theta) < 4 or gamma * (clients.L + alpha) < 0.5:  # where rounding cannot hide it
            assert np.linalg.eigvalsh(clients.hessian(gamma, theta, alpha))[0] > 0


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS)
def test_lemma_11_the_minimiser_and_that_the_gradient_vanishes_there(seed: int, problem: Callable) -> None:
    """The closed form; and the surrogate loss really has this gradient and is lowest there."""
    clients, gamma, alpha, rng = problem(seed)
    for theta in [[1.0, 1.0, 0.5], All(7)]:
        x = clients.minimiser(gamma, theta, alpha)
        H = clients.hessian(gamma, theta, alpha)
        direct = np.linalg.solve(
            H, np.einsum("i,ijk,ik->j", clients.p, clients.client_hessians(gamma, theta, alpha), clients.c)
        )
        np.testing.assert_allclose(x, direct, rtol=1e-8, atol=1e-10)
        smooth, _ = clients.curvature(gamma, theta, alpha)
        assert np.linalg.norm(clients.gradient(x, gamma, theta, alpha)) <= 1e-11 * smooth * (1 + clients.C)
        step = rng.standard_normal(len(x))
        rise = clients.loss(x + step, gamma, theta, alpha) - clients.loss(x, gamma, theta, alpha)
        assert rise == pytest.approx(step @ H @ step / 2, rel=1e-6)
    assert np.linalg.norm(clients.empirical_gradient(clients.empirical_minimiser)) <= 1e-11 * clients.L * (
        1 + clients.C
    )


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS)
def test_lemma_8_a_mean_of_matrices_lies_between_the_mean_extreme_eigenvalues(seed: int, problem: Callable) -> None:
    clients, _, _, _ = problem(seed)
    values = np.linalg.eigvalsh(clients.A)
    lowest, highest = clients.p @ values[:, 0], clients.p @ values[:, -1]
    mean = np.linalg.eigvalsh(clients.mean_hessian)
    assert lowest - 1e-12 * highest <= mean[0] <= mean[-1] <= highest * (1 + 1e-12)
    np.testing.assert_allclose(clients.curvature_bounds(0.0, All(1)), (highest, lowest), rtol=1e-10)


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS)
def test_lemma_10_smoothness_and_strong_convexity_of_the_surrogate(seed: int, problem: Callable) -> None:
    """Lemma 10 against eigenvalues of matrices built here."""
    clients, gamma, alpha, rng = problem(seed)
    for theta in thetas(rng):
        spectra = np.linalg.eigvalsh(clients.distortion(gamma, theta, alpha) @ clients.A)
        top, bottom = clients.curvature_bounds(gamma, theta, alpha)
        slack = 1e-11 * top
        assert (top, bottom) == pytest.approx((clients.p @ spectra[:, -1], clients.p @ spectra[:, 0]), abs=slack)
        smooth, strong = clients.curvature(gamma, theta, alpha)
        assert bottom - slack <= strong <= smooth <= top + slack


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS)
def test_lemma_2_kappa_bounds_the_condition_number(seed: int, problem: Callable) -> None:
    clients, gamma, alpha, rng = problem(seed)
    for theta in thetas(rng):
        smooth, strong = clients.curvature(gamma, theta, alpha)
        top, bottom = clients.curvature_bounds(gamma, theta, alpha)
        kappa = clients.kappa(gamma, theta, alpha)
        assert kappa == pytest.approx(top / bottom, rel=1e-9)  # eq. (9)
        # The smallest eigenvalue is exact to rounding of the largest.
    assert smooth <= kappa * (1 + 1e-9) * (strong + 1e-14 * smooth)


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS, exponent=st.integers(2, 12))
def test_drift_vanishes_with_gamma_and_keeps_its_precision(seed: int, exponent: int, problem: Callable) -> None:
    """drift / gamma tends to a limit, -(K-1)/2 Abar^-1 sum p_i A_i^2 (c_i - x*); at gamma = 1e-12 nothing is lost."""
    clients, _, alpha, _ = problem(seed)
    K, gamma = 3, 10.0**-exponent / (clients.L + alpha)
    residual = clients.c - clients.empirical_minimiser
    slope = -(K - 1) / 2 * np.einsum("i,ijk,ikl,il->j", clients.p, clients.A, clients.A, residual)
    limit = np.linalg.solve(clients.mean_hessian, slope)
    drift = clients.drift(gamma, All(K), alpha) / gamma
    tolerance = (
        (20 * 10.0**-exponent + 1e-9) * clients.kappa0 * clients.L * (clients.C + np.linalg.norm(limit) / clients.L)
    )
    np.testing.assert_allclose(drift, limit, rtol=1e-6, atol=tolerance)


def test_gamma_zero_and_one_step_have_no_drift(problem: Callable) -> None:
    clients, gamma, alpha, _ = problem(3, dimension=4)
    assert not clients.drift(0.0, All(1000), alpha).any()
    assert not clients.drift(gamma, All(1), alpha).any()
    np.testing.assert_allclose(clients.hessian(0.0, All(7)), 7 * clients.mean_hessian, rtol=1e-12)


@pytest.mark.parametrize("K", [10**6, 10**9])
def test_many_steps_approach_one_shot_averaging_and_the_exact_proximal_point(K: int) -> None:
    rng = np.random.default_rng(5)
    A = np.stack([np.diag(rng.uniform(1, 3, 3)) for _ in range(4)])
    clients = Quadratics(A, rng.standard_normal((4, 3)))
    np.testing.assert_allclose(clients.minimiser(1e-4, All(K)), clients.c.mean(axis=0), rtol=1e-10, atol=1e-10)
    diagonal = np.einsum("ijj->ij", A)
    weights = diagonal / (diagonal + 2.0)  # A_i (A_i + alpha I)^-1
    expected = (weights * clients.c).sum(axis=0) / weights.sum(axis=0)
    np.testing.assert_allclose(clients.minimiser(1e-4, All(K), 2.0), expected, rtol=1e-10, atol=1e-10)


def test_tiny_gamma_with_a_billion_steps() -> None:
    """gamma = 1e-12, K = 1e9: q / K = (1 - e^-u) / u with u = 1e-3 lam, to rounding."""
    clients = Quadratics(np.diag([1.0, 2.0])[None], np.zeros((1, 2)))
    u = 1e-3 * np.array([1.0, 2.0])
    for K, expected in ((All(10**9), -np.expm1(-u) / u * 1e9), (Last(10**9), np.exp(-u))):
        np.testing.assert_allclose(np.diag(clients.distortion(1e-12, K)[0]), expected, rtol=1e-8)


@settings(deadline=None, max_examples=25)
@given(seed=SEEDS, ridge=st.sampled_from([0.0, 0.3]))
def test_least_squares_clients(seed: int, ridge: float) -> None:
    rng = np.random.default_rng(seed)
    X = [rng.standard_normal((int(rng.integers(8, 15)), 3)) for _ in range(3)]
    y = [rng.standard_normal(len(x)) for x in X]
    weights = rng.uniform(0.5, 2, 3)
    clients = Quadratics.from_least_squares(X, y, weights, ridge)
    point = rng.standard_normal(3)
    share = weights / weights.sum()
    gradient = sum(w * (a.T @ (a @ point - b) / len(a) + ridge * point) for w, a, b in zip(share, X, y, strict=True))
    np.testing.assert_allclose(clients.empirical_gradient(point), gradient, rtol=1e-10, atol=1e-10)


@settings(deadline=None, max_examples=20)
@given(seed=SEEDS)
def test_kernel_clients_descend_in_the_kernel_space(seed: int) -> None:
    """Values of h under functional gradient steps h <- h - gamma mean_j (h(x_j) - y_j) k(x_j, .) - gamma ridge h."""
    rng = np.random.default_rng(seed)
    points, ridge, gamma, K = rng.standard_normal((9, 2)), 0.1, 0.2, 5
    gram = np.exp(-((points[:, None] - points) ** 2).sum(axis=-1) / 2)
    y = rng.standard_normal(9)
    clients = Quadratics.from_kernel(gram, [y[:4], y[4:]], ridge=ridge)
    features = kernel_features(gram)
    np.testing.assert_allclose(features @ features.T, gram, atol=1e-12)
    assert np.linalg.eigvalsh(clients.A).max() <= 1 + ridge + 1e-12  # k(x, x) = 1
    for number, own in enumerate((slice(0, 4), slice(4, 9))):
        values, sent = np.zeros(9), np.zeros(9)
        for _ in range(K):
            g = gram[:, own] @ (values[own] - y[own]) / len(y[own]) + ridge * values
            values, sent = values - gamma * g, sent + g
        messages = clients.client_gradients(np.zeros(features.shape[1]), gamma, All(K))
        np.testing.assert_allclose(features @ messages[number], sent, rtol=1e-9, atol=1e-10)


def test_kernels_of_low_rank_have_few_coordinates() -> None:
    X = np.random.default_rng(0).standard_normal((12, 3))
    assert kernel_features(X @ X.T).shape == (12, 3)
    for wrong, words in (
        (np.ones(3), r"\[n, n\]"),
        (np.diag([1.0, np.nan]), "finite"),
        (np.array([[1.0, 0.2], [0.0, 1.0]]), "symmetric"),
        (np.diag([1.0, -0.5]), "semi-definite"),
        (np.zeros((2, 2)), "semi-definite"),
    ):
        with pytest.raises(InputError, match=words):
            kernel_features(wrong)
    with pytest.raises(InputError, match="between 12 samples, but the clients have 5"):
        Quadratics.from_kernel(X @ X.T, [np.zeros(2), np.zeros(3)])


def test_refusals_name_the_condition() -> None:
    good = Quadratics(np.eye(2)[None] * 4, np.zeros((1, 2)))
    with pytest.raises(InputError, match=r"gamma < 1/\(L \+ alpha\) = 0.2, but gamma = 0.2"):
        good.minimiser(0.2, All(3), 1.0)
    with pytest.raises(InputError, match="non-negative finite gamma"):
        good.distortion(-0.1, All(3))
    with pytest.raises(InputError, match="alpha"):
        good.distortion(0.1, All(3), -1.0)
    with pytest.raises(InputError, match="mu > 0"):
        Quadratics(np.diag([1.0, 0.0])[None], np.zeros((1, 2)))
    with pytest.raises(InputError, match="ridge"):
        Quadratics.from_least_squares([np.ones((1, 2))], [np.ones(1)])
    with pytest.raises(InputError, match="Theta must be non-negative"):
        good.minimiser(0.1, [1.0, -1.0])
    with pytest.raises(InputError, match="at least one"):
        Quadratics.from_least_squares([], [])
    for wrong in ([[1.0, np.nan]], [[np.inf, 1.0]]):
        with pytest.raises(InputError, match="client 0 must be finite"):
            Quadratics.from_least_squares([np.array(wrong)], [np.ones(1)], ridge=1.0)
    with pytest.raises(InputError, match="finite and at least 0, not inf"):
        Quadratics.from_least_squares([np.ones((2, 1))], [np.ones(2)], ridge=np.inf)
    with pytest.raises(InputError, match="symmetric"):
        Quadratics(np.array([[[1.0, 0.5], [0.0, 1.0]]]), np.zeros((1, 2)))
    with pytest.raises(InputError, match="shape"):
        Quadratics(np.eye(2), np.zeros(2))
    with pytest.raises(InputError, match="weights"):
        Quadratics(np.eye(2)[None], np.zeros((1, 2)), np.array([0.0]))
    spread = Quadratics(np.stack([np.diag([1.0, 10.0])] * 2), np.array([[0.0, 1.0], [1.0, 0.0]]))
    with pytest.raises(InputError, match="ill-conditioned"):
        spread.minimiser(0.05, Last(10**9))


def test_theory_of_local_updates_needs_no_torch() -> None:
    """By the modules' own imports: the standard library, NumPy, SciPy, core.errors, core.lazy and theory only."""
    room = Path(next(iter(parley.theory.__path__)))
    names = [
        "surrogate",
        "quadratics",
        "theta",
        "region",
        "servers",
        "condition",
        "distance",
        "frontier",
        "advice",
        "exact_advice",
    ]
    for path in [room / f"{name}.py" for name in [*names, "pareto", "rounds", "spectra", "__init__"]]:
        for node in ast.walk(ast.parse(path.read_text())):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in imported:
                allowed = (
                    "numpy",
                    "scipy",
                    "parley.core.errors",
                    "parley.core.lazy",
                    "parley.theory",
                    "math",
                    "collections",
                    "dataclasses",
                )
                assert name.startswith((*allowed, "functools", "itertools", "typing")), f"{path.name} imports {name}"


def test_coefficients_and_named_thetas_agree(problem: Callable) -> None:
    clients, gamma, alpha, _ = problem(11, dimension=3)
    for named, plain in ((All(4), [1, 1, 1, 1]), (Last(4), [0, 0, 0, 1])):
        np.testing.assert_allclose(
            clients.minimiser(gamma, named, alpha),
            clients.minimiser(gamma, as_theta(plain), alpha),
            rtol=1e-10,
            atol=1e-12,
        )

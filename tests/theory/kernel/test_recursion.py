"""Lemmas 2, 4, 5 and Propositions 1, 3 of paper 000 against the methods simulated from their definitions."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory import kernel as k
from parley.theory.kernel.decay import gathered, kept, learned

SEEDS = st.integers(0, 10**6)
few = settings(deadline=None, max_examples=25)


def dense_P(federation: k.KernelFederation) -> np.ndarray:
    """Eq. (12) as printed, with all s terms."""
    P = np.zeros((federation.samples.N,) * 2)
    method = federation.method
    for part in federation.samples.slices:
        x = federation.samples.x[part]
        K = federation.kernel(x, x) / len(x)
        step = np.eye(len(x)) - method.eta * K
        P[part, part] = (
            sum(np.linalg.matrix_power(step, tau) for tau in range(method.s))
            if isinstance(method, k.GradientSteps)
            else np.linalg.inv(np.eye(len(x)) + method.eta * K)
        )
    return P


@few
@given(seed=SEEDS)
def test_blocks_are_the_printed_P(seed: int, problem: Callable) -> None:
    federation = problem(seed).federation
    P, eye = dense_P(federation), np.eye(federation.samples.N)
    np.testing.assert_allclose(federation.blocks.apply(eye), P, atol=1e-10)
    np.testing.assert_allclose(federation.blocks.apply(P, -1.0), eye, atol=1e-10)
    np.testing.assert_allclose(
        federation.blocks.block(0), P[federation.samples.slices[0]][:, federation.samples.slices[0]], atol=1e-10
    )
    np.testing.assert_allclose(federation.blocks.condition, np.linalg.cond(P), rtol=1e-9)


@few
@given(seed=SEEDS)
def test_proposition_1_and_3_against_direct_simulation(seed: int, problem: Callable) -> None:
    case = problem(seed)
    a, y = case.function(), case.rng.standard_normal(case.N)
    start_at_new = (case.gram() @ a)[case.N :]
    basis = k.exact_basis(case.federation)
    run = k.trajectory(case.federation, y, case.values(a), basis)
    krylov = k.krylov_trajectory(case.federation, y, 12, case.values(a))
    f = start = case.values(a)
    for t in range(1, 13):
        a = case.round(a, y)
        f = case.federation.step(f, y)
        expected = case.gram() @ a
        np.testing.assert_allclose(f, expected[: case.N], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(run.at(t), expected[: case.N], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(krylov.at(t), expected[: case.N], rtol=1e-10, atol=1e-10)
        new = case.anchors[case.N :]
        np.testing.assert_allclose(run.predict(new, t, start_at_new), expected[case.N :], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(krylov.predict(new, t, start_at_new), expected[case.N :], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(run.at([0, 12]), np.stack([start, f], axis=1), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(run.predict(new, [12], start_at_new)[:, 0], expected[case.N :], rtol=1e-10, atol=1e-10)


@few
@given(seed=SEEDS)
def test_lemma_2(seed: int, problem: Callable) -> None:
    case = problem(seed)
    federation, eta, N = case.federation, case.federation.method.eta, case.N
    gram, P = case.gram(), dense_P(federation)
    # Psi from (10): columns are the coefficients of w_i Psi_i's components over the anchors.
    psi = np.zeros((len(case.anchors), N))
    for i, part in enumerate(federation.samples.slices):
        n = part.stop - part.start
        for j in range(part.start, part.stop):
            unit = np.eye(len(case.anchors))[j]
            if isinstance(federation.method, k.GradientSteps):
                total = np.zeros_like(unit)
                for _ in range(federation.method.s):
                    total += unit
                    unit = case.operator(unit, i)
            else:
                total = case.local(unit, np.zeros(N), i)  # (I + eta ...)^-1 k_x is (6) with y = 0
            psi[:, j] = n / N * eta / n * total
    K = gram[:N, :N] / N
    np.testing.assert_allclose(gram @ psi, gram[:, :N] @ P * eta / N, atol=1e-10)
    np.testing.assert_allclose((gram @ psi)[:N], eta * K @ P, atol=1e-10)
    f = case.function()
    after = case.round(f, np.zeros(N))  # L f is a round with y = 0
    np.testing.assert_allclose(gram @ (psi @ case.values(f)), gram @ (f - after), atol=1e-10)
    np.testing.assert_allclose(case.values(after), (np.eye(N) - eta * K @ P) @ case.values(f), atol=1e-10)


@few
@given(seed=SEEDS)
def test_lemmas_4_and_5(seed: int, problem: Callable) -> None:
    federation = problem(seed).federation
    method, N = federation.method, federation.samples.N
    K, P = federation.gram.dense, dense_P(federation)
    eigenvalues = np.linalg.eigvals(K @ P)
    spectrum = k.exact_spectrum(federation)
    scale = spectrum.update[0]
    assert np.abs(eigenvalues.imag).max() < 1e-6 * scale
    assert spectrum.update.min() >= 0
    assert method.eta * spectrum.update.max() <= 1 + 1e-12
    np.testing.assert_allclose(np.sort(eigenvalues.real)[::-1], spectrum.update, atol=1e-7 * scale)
    np.testing.assert_allclose(np.linalg.eigvalsh(K)[::-1], spectrum.kernel, atol=1e-12 * scale)
    assert np.linalg.cond(P) <= federation.kappa * (1 + 1e-10)
    assert (spectrum.update <= method.s * spectrum.kernel + 1e-12 * scale).all()
    assert (spectrum.update >= method.s * spectrum.kernel / federation.kappa - 1e-12 * scale).all()
    rebuilt = k.basis_spectrum(federation, k.exact_basis(federation))
    np.testing.assert_allclose(rebuilt.kernel, spectrum.kernel, atol=1e-12 * scale)
    assert rebuilt.N == N


@few
@given(seed=SEEDS)
def test_the_limit_is_where_the_iterates_go(seed: int, problem: Callable) -> None:
    case = problem(seed)
    y = case.rng.standard_normal(case.N)
    start = case.values(case.function())
    basis = k.exact_basis(case.federation)
    run = k.trajectory(case.federation, y, start, basis)
    limit = run.limit()
    # A fixed point, reached along every direction that can be reached in 10^9 rounds.
    np.testing.assert_allclose(case.federation.step(limit, y), limit, atol=1e-10)
    slow = basis.values[basis.values > 1e-13 * basis.values[0]].min() * case.federation.method.eta
    if slow > 1e-7:
        np.testing.assert_allclose(run.at(10**9), limit, atol=1e-8)


def test_s_beyond_any_sum() -> None:
    rng = np.random.default_rng(0)
    clients = [rng.uniform(0, 1, (n, 1)) for n in (4, 6)]
    federation = k.KernelFederation.of(k.RBF(0.3), clients, k.GradientSteps(0.5, 10**9))
    # s -> infinity: (eta K_i)^-1 on what the client can see, s itself on its null space.
    expected = np.linalg.inv(0.5 * federation.kernel(clients[0], clients[0]) / 4)
    np.testing.assert_allclose(federation.blocks.block(0), expected, rtol=1e-6)


def test_tiny_eigenvalues_and_huge_rounds_keep_their_digits() -> None:
    assert learned(1e-20, 10) == pytest.approx(1e-19, rel=1e-14)
    assert gathered(1e-20, 10) == pytest.approx(10, rel=1e-14)
    assert learned(1e-9, 10**9) == pytest.approx(1 - np.exp(-1), rel=1e-8)
    assert kept(1e-9, 10**9) == pytest.approx(np.exp(-1), rel=1e-8)
    assert (kept(1.0, 0), kept(1.0, 1), gathered(0.0, 7), gathered(1.0, 7)) == (1, 0, 7, 1)


def test_kappa_is_the_corrected_14() -> None:
    assert k.GradientSteps(0.1, 5).kappa(0.3) == pytest.approx(0.3 * 5 / (1 - 0.7**5), rel=1e-14)
    assert k.GradientSteps(0.1, 5).kappa(1e-14) == pytest.approx(1.0, rel=1e-12)
    assert k.ProximalStep(0.1).kappa(0.3) == 1.3
    assert 0.3**5 / (1 - 0.7**5) < 1  # the printed gamma^s is no condition number


def test_an_ntk_reaches_zero_training_error() -> None:  # Remark 6
    rng = np.random.default_rng(1)
    clients = [rng.standard_normal((n, 8)) for n in (3, 5, 8)]
    y = rng.standard_normal(16)
    for method in (k.GradientSteps(0.05, 10), k.ProximalStep(1.0)):
        for ntk in (k.TwoLayerNTK(), k.TwoLayerNTK(both_layers=True)):
            run = k.trajectory(k.KernelFederation.of(ntk, clients, method), y)
            np.testing.assert_allclose(run.limit(), y, atol=1e-9)
            np.testing.assert_allclose(run.at(10**5), y, atol=1e-3)


def test_gamma_of_one_and_more() -> None:
    x = [np.ones((2, 1)), 3 * np.ones((1, 1))]
    with pytest.raises(InputError, match=r"but it is 1\.8; take eta below 0\.111111 or use FedProx"):
        k.KernelFederation.of(k.Linear(), x, k.GradientSteps(0.2, 3)).blocks  # noqa: B018
    with pytest.raises(InputError, match="it is 1;"):
        k.KernelFederation.of(k.Linear(), x, k.GradientSteps(1 / 9, 3)).blocks  # noqa: B018
    prox = k.KernelFederation.of(k.Linear(), x, k.ProximalStep(0.2))
    assert prox.gamma == pytest.approx(1.8)
    np.testing.assert_allclose(k.trajectory(prox, [1.0, 1.0, 3.0]).limit(), [1, 1, 3], atol=1e-10)


def test_singular_kernels_project() -> None:
    # Two equal points with different targets: the limit is their P-weighted mean, here the plain mean.
    federation = k.KernelFederation.of(k.RBF(1.0), [[0.3, 0.3]], k.GradientSteps(0.5, 4))
    np.testing.assert_allclose(k.trajectory(federation, [0.0, 1.0]).limit(), [0.5, 0.5], atol=1e-12)
    # A kernel that is zero everywhere learns nothing.
    zero = k.KernelFederation.of(k.Precomputed(np.zeros((3, 3))), [[0, 1], [2]], k.GradientSteps(0.5, 2))
    np.testing.assert_array_equal(k.trajectory(zero, [1.0, 2.0, 3.0]).limit(), np.zeros(3))
    np.testing.assert_array_equal(k.trajectory(zero, [1.0, 2.0, 3.0]).at(10**6), np.zeros(3))


def test_bad_input_is_refused() -> None:
    good = k.GradientSteps(0.1, 2)
    with pytest.raises(InputError, match="client 1's data has a NaN or infinite value in row 2"):
        k.KernelFederation.of(k.RBF(), [[0.0], [0.0, 1.0, np.nan]], good)
    federation = k.KernelFederation.of(k.RBF(), [[0.0], [0.5, 1.0]], good)
    with pytest.raises(InputError, match="y has a NaN"):
        k.trajectory(federation, [0.0, np.nan, 1.0])
    with pytest.raises(InputError, match="one value per sample, \\[3\\]"):
        k.trajectory(federation, [0.0, 1.0])
    with pytest.raises(InputError, match="client 1 has 2 samples but 1 values"):
        k.trajectory(federation, [[0.0], [1.0]])
    with pytest.raises(InputError, match="new points has a NaN"):
        k.trajectory(federation, [0.0, 1.0, 2.0]).predict([np.nan], 3)
    with pytest.raises(InputError, match="whole numbers"):
        k.trajectory(federation, [0.0, 1.0, 2.0]).at(-1)
    with pytest.raises(InputError, match="at least one client"):
        k.KernelFederation.of(k.RBF(), [], good)
    with pytest.raises(InputError, match="client 0's data must have the shape"):
        k.KernelFederation.of(k.RBF(), [[], [1.0]], good)
    with pytest.raises(InputError, match="same number of columns"):
        k.KernelFederation.of(k.RBF(), [np.ones((1, 2)), np.ones((1, 3))], good)
    with pytest.raises(InputError, match="not positive semidefinite"):
        k.KernelFederation.of(k.Precomputed(np.array([[1.0, 2.0], [2.0, 1.0]])), [[0, 1]], good).blocks  # noqa: B018
    # Indefinite across clients only: seen when K as a whole is decomposed.
    across = k.KernelFederation.of(k.Precomputed(np.array([[1.0, 2.0], [2.0, 1.0]])), [[0], [1]], good)
    with pytest.raises(InputError, match="not positive semidefinite"):
        k.exact_basis(across)
    for broken in (
        lambda: k.GradientSteps(0.0),
        lambda: k.GradientSteps(0.1, 0),
        lambda: k.ProximalStep(np.inf),
        lambda: k.GradientSteps(np.nan),
    ):
        with pytest.raises(InputError):
            broken()


def test_krylov_says_which_rounds_it_serves() -> None:
    rng = np.random.default_rng(0)
    federation = k.KernelFederation.of(
        k.Laplace(0.1), [rng.uniform(0, 1, 30), rng.uniform(0, 1, 20)], k.GradientSteps(0.5, 2)
    )
    run = k.krylov_trajectory(federation, rng.standard_normal(50), 20)
    with pytest.raises(InputError, match="serves rounds up to 20"):
        run.at(21)
    with pytest.raises(InputError, match="serves rounds up to 20"):
        run.limit()
    assert k.krylov_trajectory(federation, np.zeros(50), 20).at(20).max() == 0


@few
@given(seed=SEEDS)
def test_distance_is_the_rkhs_norm(seed: int, problem: Callable) -> None:
    case = problem(seed)
    a, y = case.function(), case.rng.standard_normal(case.N)
    run = k.trajectory(case.federation, y, case.values(a))
    after = case.round(case.round(a, y), y)
    np.testing.assert_allclose(run.distance(2), case.norm(after - a), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(run.distance([1, 2])[1], run.distance(2), rtol=1e-12)

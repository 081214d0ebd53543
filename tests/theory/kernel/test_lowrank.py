"""Low-rank and matrix-free paths against the dense one."""

import resource
import time

import numpy as np
import pytest

from parley.core.errors import InputError
from parley.theory import kernel as k
from parley.theory.kernel import gram


def federation(N: int = 300, clients: int = 6, columns: int = 2, kernel: k.Kernel | None = None) -> k.KernelFederation:
    rng = np.random.default_rng(0)
    parts = np.array_split(rng.uniform(0, 1, (N, columns)), clients)
    return k.KernelFederation.of(kernel or k.RBF(0.3), parts, k.GradientSteps(0.5, 5))


def test_pivoted_cholesky_is_exact_up_to_its_residual() -> None:
    x = np.random.default_rng(0).uniform(0, 1, (80, 2))
    gram = k.RBF(0.5)(x, x)
    for tolerance in (1e-2, 1e-5, 1e-8):
        part = k.pivoted_cholesky(k.RBF(0.5), x, tolerance)
        missing = gram - part.factor @ part.factor.T
        assert np.trace(missing) == pytest.approx(part.residual, rel=1e-3, abs=1e-12)
        assert part.residual <= tolerance * np.trace(gram)
        assert np.linalg.eigvalsh(missing)[0] > -1e-12
        np.testing.assert_allclose(np.triu(part.factor[list(part.pivots)], 1), 0, atol=1e-9)
    doubled = k.pivoted_cholesky(k.RBF(0.5), np.vstack([x[:5], x[:5]]), 1e-14)
    assert len(doubled.pivots) == 5
    assert len(k.pivoted_cholesky(k.RBF(0.5), x, 1e-12, max_rank=7).pivots) == 7
    with pytest.raises(InputError, match="tolerance"):
        k.pivoted_cholesky(k.RBF(0.5), x, 0.0)


def test_low_rank_spectrum_is_off_by_no_more_than_it_says() -> None:
    case = federation()
    exact = k.exact_spectrum(case)
    for tolerance in (1e-3, 1e-6, 1e-9):
        basis = k.lowrank_basis(case, tolerance)
        found = k.basis_spectrum(case, basis)
        gap = exact.update[: len(found.update)] - found.update
        assert gap.min() >= -1e-13
        assert gap.max() <= basis.error + 1e-13
        left_out = exact.kernel[: len(found.kernel)] - found.kernel
        assert left_out.min() >= -1e-13
        assert left_out.max() <= basis.error / 5 + 1e-13
        assert basis.error <= 5 * tolerance * 1.0001  # trace(K) = 1 here, s = 5


def test_the_stated_error_is_attained() -> None:
    """One-point clients, k diagonal, a tiny step: what is left out of K P is s times what is left out of K."""
    diagonal = k.KernelFederation.of(k.Precomputed(np.diag([3.0, 2.0, 1.0])), [[0], [1], [2]], k.GradientSteps(1e-9, 5))
    basis = k.lowrank_basis(diagonal, 1e-6, max_rank=2)
    np.testing.assert_allclose(basis.values, [5.0, 10 / 3], rtol=1e-6)
    assert basis.error == pytest.approx(5 / 3, rel=1e-6)


def test_low_rank_and_krylov_runs_agree_with_the_dense_one() -> None:
    case = federation()
    rng = np.random.default_rng(1)
    y, start = np.sin(6 * case.samples.x[:, 0]) + rng.standard_normal(300), rng.standard_normal(300)
    t, new = [1, 10, 1000], rng.uniform(0, 1, (5, 2))
    exact = k.trajectory(case, y, start)
    low = k.trajectory(case, y, start, k.lowrank_basis(case, 1e-13))
    krylov = k.krylov_trajectory(case, y, t, start)
    assert krylov.basis.vectors.shape[1] < 150
    for run in (low, krylov):
        np.testing.assert_allclose(run.at(t), exact.at(t), atol=1e-9)
        np.testing.assert_allclose(run.predict(new, t), exact.predict(new, t), atol=1e-9)
        np.testing.assert_allclose(run.distance(t), exact.distance(t), rtol=1e-8)
    truth = np.sin(6 * case.samples.x[:, 0])
    np.testing.assert_allclose(
        k.expected_error(case, truth, 0.5, basis=low.basis).total(t),
        k.expected_error(case, truth, 0.5, basis=exact.basis).total(t),
        rtol=1e-8,
    )


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3])
def test_coefficients_gather_the_residuals_of_all_rounds(tolerance: float) -> None:
    case = federation(60)
    y = np.random.default_rng(1).standard_normal(60)
    run = k.trajectory(case, y, basis=k.lowrank_basis(case, tolerance))
    residuals = y[:, None] - run.at(np.arange(7))
    expected = case.method.eta * case.blocks.apply(residuals.sum(axis=1))
    np.testing.assert_allclose(run.coefficients(7), expected, rtol=1e-9, atol=1e-9)


def test_nothing_stored_is_the_same() -> None:
    case = federation()
    streaming = k.KernelFederation.of(case.kernel, [case.samples.x[s] for s in case.samples.slices], case.method)
    object.__setattr__(streaming.gram, "memory", 0.0)
    vector = np.random.default_rng(0).standard_normal((300, 2))
    assert not streaming.gram.stored
    np.testing.assert_allclose(streaming.gram.matmul(vector), case.gram.matmul(vector), atol=1e-13)
    assert "dense" not in streaming.gram.__dict__


def test_the_matrix_is_made_of_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "TILE", 7)
    for N in (5, 7, 20, 21):
        case = federation(N, 2)
        expected = case.kernel(case.samples.x, case.samples.x) / N
        np.testing.assert_allclose(case.gram.dense, expected, rtol=1e-14)
        np.testing.assert_array_equal(case.gram.dense, case.gram.dense.T)
        vector = np.random.default_rng(0).standard_normal(N)
        np.testing.assert_allclose(case.gram.matmul(vector), expected @ vector, atol=1e-15)


def test_leading_eigenvalues() -> None:
    case = federation(kernel=k.Laplace(0.3))
    exact = k.exact_spectrum(case)
    kernel, update = k.leading_eigenvalues(case, 20)
    np.testing.assert_allclose(kernel, exact.kernel[:20], rtol=1e-8)
    np.testing.assert_allclose(update, exact.update[:20], rtol=1e-8)
    with pytest.raises(InputError, match="between 1 and N - 1"):
        k.leading_eigenvalues(case, 300)


def test_nystroem_with_all_landmarks_is_the_kernel() -> None:
    rng = np.random.default_rng(0)
    x, z = rng.uniform(0, 1, (30, 2)), rng.uniform(0, 1, (8, 2))
    everything = k.nystroem(k.Laplace(0.5), x, 30, rng)
    np.testing.assert_allclose(everything(x) @ everything(z).T, k.Laplace(0.5)(x, z), atol=1e-10)
    few = k.FeatureKernel(k.nystroem(k.RBF(0.5), rng.uniform(0, 1, (5000, 2)), 60, rng))
    np.testing.assert_allclose(few(x, z), k.RBF(0.5)(x, z), atol=1e-5)
    with pytest.raises(InputError, match="at least one landmark"):
        k.nystroem(k.RBF(), x, 0, rng)


@pytest.mark.slow
def test_ten_thousand_samples_in_a_minute() -> None:
    rng = np.random.default_rng(0)
    begin = time.process_time()
    case = federation(10_000, 50, 5, k.RBF(0.5))
    y = np.sin(4 * case.samples.x.sum(axis=1)) + 0.5 * rng.standard_normal(10_000)
    kernel, update = k.leading_eigenvalues(case, 20)
    fitted = k.krylov_trajectory(case, y, 1000).at(np.arange(1, 1001))
    assert time.process_time() - begin < 60
    assert fitted.shape == (10_000, 1000)
    assert (update <= 5 * kernel).all()
    # The largest resident set so far, in GiB (Linux counts in KiB).
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20 < 6


@pytest.mark.slow
def test_three_thousand_samples_against_the_dense_reference() -> None:
    case = federation(3000, 50, 5, k.RBF(0.5))
    y = np.sin(4 * case.samples.x.sum(axis=1)) + 0.5 * np.random.default_rng(0).standard_normal(3000)
    exact = k.exact_basis(case)
    t = [1, 10, 100, 1000]
    expected = k.trajectory(case, y, basis=exact).at(t)
    np.testing.assert_allclose(k.krylov_trajectory(case, y, t).at(t), expected, atol=1e-9)
    np.testing.assert_allclose(k.leading_eigenvalues(case, 20)[1], exact.values[:20], rtol=1e-9)
    low = k.lowrank_basis(case, 1e-4)
    assert np.abs(low.values - exact.values[: len(low.values)]).max() <= low.error
    np.testing.assert_allclose(k.trajectory(case, y, basis=low).at(t), expected, atol=1e-2)


@pytest.mark.slow
def test_a_million_samples_linearly() -> None:
    rng = np.random.default_rng(0)
    phi = k.random_fourier(5, 200, rng)
    seconds = []
    for N in (125_000, 1_000_000):
        sizes = np.full(N // 2500, 2500)
        clients = [np.random.default_rng(i).uniform(0, 1, (n, 5)) for i, n in enumerate(sizes)]
        begin = time.process_time()
        space = k.FeatureSpace.of(phi, clients, (np.sin(x.sum(axis=1)) for x in clients), k.GradientSteps(0.5, 5))
        space.theta(1000)
        seconds.append(time.process_time() - begin)
    assert seconds[1] < 12 * seconds[0]  # eight times the samples

"""Singular, badly scaled, tiny and broken problems: the right result or one clear sentence, never silent garbage."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory import kernel as k

METHODS = [k.GradientSteps(0.5, 4), k.ProximalStep(0.5), k.ProximalStep(1e6)]


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_duplicates_across_clients_with_different_targets(method: k.KernelStep) -> None:
    """K is singular: the limit is the P-weighted mean at the common point, whatever the size of eta."""
    federation = k.KernelFederation.of(k.RBF(0.2), [[0.3, 0.9], [0.3]], method)
    y = np.array([0.0, 2.0, 3.0])
    P = federation.blocks.apply(np.eye(3))
    # The limit f satisfies K P (y - f) = 0 with f of the form (a, b, a).
    design = np.array([[1.0, 0], [0, 1], [1, 0]])
    expected = design @ np.linalg.solve(design.T @ P @ design, design.T @ P @ y)
    np.testing.assert_allclose(k.trajectory(federation, y).limit(), expected, atol=1e-6)
    np.testing.assert_allclose(k.trajectory(federation, y).at(10**12), expected, atol=1e-6)


@pytest.mark.parametrize("method", [*METHODS, k.ProximalStep(1e8)], ids=repr)
def test_the_rank_is_the_number_of_distinct_points(method: k.KernelStep) -> None:
    """Rounding errors of a singular K are not taken for directions that can be learned."""
    rng = np.random.default_rng(0)
    distinct = rng.uniform(0, 1, 12)
    clients = [rng.choice(distinct, n) for n in (10, 25, 3)]
    federation = k.KernelFederation.of(k.Laplace(0.5), clients, method)
    rank = len(np.unique(np.concatenate(clients)))
    assert (k.exact_basis(federation).values > 0).sum() == rank
    assert k.exact_spectrum(federation).rank == rank


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_any_step_of_fedprox_is_taken(seed: int) -> None:
    """A large eta shrinks S far below K, whose rounding errors must not pass for negative eigenvalues."""
    rng = np.random.default_rng(seed)
    clients = [rng.uniform(0, 1, int(n)) for n in rng.integers(1, 25, 4)]
    method = k.ProximalStep(float(10 ** rng.uniform(-3, 6)))
    federation = k.KernelFederation.of(k.RBF(0.3), clients, method)
    y = rng.standard_normal(federation.samples.N)
    run = k.trajectory(federation, y)
    f = np.zeros_like(y)
    for _ in range(5):
        f = federation.step(f, y)
    np.testing.assert_allclose(run.at(5), f, atol=1e-9 * max(1.0, federation.gamma))
    assert np.isfinite(run.limit()).all()


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_clients_of_one_point(method: k.KernelStep) -> None:
    federation = k.KernelFederation.of(k.Laplace(0.5), [[0.1], [0.4], [0.8]], method)
    y = np.array([1.0, -1.0, 2.0])
    np.testing.assert_allclose(k.trajectory(federation, y).limit(), y, atol=1e-9)
    # k(x, x) = 1, so every P_ii is the same number: a federation of single points is plain gradient descent.
    step = method.eta * float(method.multiplier(1.0))
    gradient = k.KernelFederation.of(k.Laplace(0.5), [[0.1, 0.4, 0.8]], k.GradientSteps(min(step, 0.9)))
    if step < 0.9:
        np.testing.assert_allclose(k.trajectory(federation, y).at(7), k.trajectory(gradient, y).at(7), atol=1e-12)


def test_a_single_sample() -> None:
    federation = k.KernelFederation.of(k.RBF(), [[0.5]], k.GradientSteps(0.5, 3))
    np.testing.assert_allclose(k.trajectory(federation, [2.0]).at([1, 2]), [[2 * (1 - 0.5**3), 2 * (1 - 0.5**6)]])
    assert k.exact_spectrum(federation).stop(0.1).T >= 1


def test_a_kernel_that_is_zero() -> None:
    zero = k.KernelFederation.of(k.Precomputed(np.zeros((5, 5))), [[0, 1, 2], [3, 4]], k.GradientSteps(0.5, 2))
    y = np.arange(5.0)
    np.testing.assert_array_equal(k.leading_eigenvalues(zero, 2), np.zeros((2, 2)))
    np.testing.assert_array_equal(k.krylov_trajectory(zero, y, 50).at(50), np.zeros(5))
    with pytest.raises(InputError, match="nothing can be learned"):
        k.lowrank_basis(zero)
    with pytest.raises(InputError, match="learns nothing"):
        k.exact_spectrum(zero).stop(0.5)


def test_spectrum_stop_is_the_rule() -> None:
    federation = k.KernelFederation.of(k.Sobolev(), [np.linspace(0.1, 1, 12), [0.2, 0.7]], k.GradientSteps(0.3, 4))
    spectrum = k.exact_spectrum(federation)
    assert spectrum.stop(0.4, 2.0) == k.stopping_round(spectrum.kernel, 14, federation.method, 0.4, 2.0)
    # Eigenvalues straight from NumPy, some negative by rounding.
    rough = np.append(spectrum.kernel, -1e-18)
    assert k.stopping_round(rough, 14, federation.method, 0.4, 2.0) == spectrum.stop(0.4, 2.0)


def test_objects_print_in_a_line() -> None:
    federation = k.KernelFederation.of(k.RBF(), [np.linspace(0, 1, 50)], k.GradientSteps(0.5))
    space = k.FeatureSpace.of(k.Identity(), [np.ones((3, 2))], [np.ones(3)], k.GradientSteps(0.1))
    for thing in (federation, k.trajectory(federation, np.ones(50)), k.exact_spectrum(federation), space):
        assert "array" not in repr(thing)
        assert len(repr(thing)) < 300


FEDERATION = k.KernelFederation.of(k.RBF(), [[0.0], [0.5, 1.0]], k.GradientSteps(0.1, 2))
SPECTRUM = k.exact_spectrum(FEDERATION)
Y = [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: k.KernelFederation.of(k.RBF(), [["a"]], k.GradientSteps(0.1)),
            "client 0's data must be an array of numbers",
        ),
        (
            lambda: k.KernelFederation.of(k.RBF(), [[[1.0], [1.0, 2.0]]], k.GradientSteps(0.1)),
            "must be an array of numbers",
        ),
        (lambda: k.KernelFederation.of(k.RBF(), [[1j]], k.GradientSteps(0.1)), "must be an array of numbers"),
        (lambda: k.trajectory(FEDERATION, ["a", "b", "c"]), "y must be an array of numbers"),
        (lambda: k.trajectory(FEDERATION, Y).at(np.inf), "whole numbers"),
        (lambda: k.trajectory(FEDERATION, Y).coefficients(np.inf), "whole numbers"),
        (lambda: k.trajectory(FEDERATION, Y).at(np.nan), "whole numbers"),
        (lambda: k.trajectory(FEDERATION, Y).at("soon"), "rounds must be an array of numbers"),
        (lambda: k.trajectory(FEDERATION, Y).predict(np.ones((2, 3)), 1), "3 columns, the clients' 1"),
        (lambda: k.GradientSteps("fast"), "step size eta"),
        (lambda: k.expected_error(FEDERATION, Y, -0.1), "sigma must be finite"),
        (lambda: k.expected_error(FEDERATION, [0.0, np.nan, 1.0], 0.1), "target has a NaN"),
        (lambda: k.proposition7(SPECTRUM, 1, -1.0, 0.5), "start must be finite and at least 0"),
        (lambda: k.proposition7(SPECTRUM, 1, 1.0, np.nan), "sigma must be finite"),
        (lambda: k.theorem8(SPECTRUM, 1, np.nan), "start must be"),
        (lambda: k.theorem10(SPECTRUM, 1, 1.0, -2.0), "delta must be"),
        (lambda: k.theorem10_tail(SPECTRUM, 1, 0.0), "sigma must be positive"),
        (lambda: k.theorem11(SPECTRUM, 1, 1.0, np.inf), "sigma must be finite"),
        (lambda: k.lemma27(SPECTRUM, 1, -1.0), "start must be"),
        (lambda: k.lemma27_tail(SPECTRUM, 1, -1.0), "sigma must be positive"),
        (lambda: k.theorem22(1.0, 0.1, 1.0, 0.0, 0), "N must be a whole number of at least 1"),
        (lambda: k.corollary23(np.nan, 0.1, 3, 10), "kappa must be"),
        (lambda: k.corollary24(1.0, 0.1, 1.0, 0), "N must be a whole number of at least 1"),
        (lambda: k.corollary13_distance(1.0, -1.0), "heterogeneity must be"),
        (lambda: k.corollary14_distance(1.0, 1.0, 0.0, 1.0, 1.0, 2, 3, 10), "alpha"),
        (lambda: k.coupon_samples(1.0, 0), "dimension d"),
        (lambda: k.rademacher([1.0, -0.5], 2, 0.1), "cannot have the eigenvalue -0.5"),
        (lambda: k.stopping_round([1.0], 0, k.GradientSteps(0.1), 0.5), "N must be a whole number of at least 1"),
        (lambda: k.critical_radius([1.0], 10, 0.0), "sigma must be positive"),
    ],
)
def test_broken_input_is_refused_in_a_sentence(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_kernel_that_overflows_is_refused() -> None:
    with pytest.raises(InputError, match="not finite at client 0's points"):
        k.KernelFederation.of(k.Polynomial(20), [[1e30, 1.0]], k.ProximalStep(0.5)).blocks  # noqa: B018
    # Finite for each client, infinite between them.
    across = k.KernelFederation.of(Between(), [[0.0], [1.0]], k.ProximalStep(0.5))
    with pytest.raises(InputError, match="not finite at some pair of points"):
        k.trajectory(across, [1.0, 2.0])


class Between:
    """1 on the diagonal, infinite elsewhere."""

    def __call__(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        return np.where(x.reshape(-1, 1) == z.reshape(1, -1), 1.0, np.inf)

    def diagonal(self, x: np.ndarray) -> np.ndarray:
        return np.ones(len(x))

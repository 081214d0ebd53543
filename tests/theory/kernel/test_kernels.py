"""Kernels against their definitions as expectations, inner products or distances."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory import kernel as k

KERNELS: list[k.Kernel] = [
    k.Linear(0.3),
    k.Polynomial(3, 0.5),
    k.RBF(0.7),
    k.Laplace(0.7),
    k.ArcCosine(0),
    k.ArcCosine(1),
    k.ArcCosine(2),
    k.TwoLayerNTK(),
    k.TwoLayerNTK(True),
]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_kernels_are_symmetric_positive_and_know_their_diagonal(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((int(rng.integers(1, 9)), int(rng.integers(1, 4))))
    x[-1] = 0 if rng.random() < 0.3 else x[0]
    for kernel in KERNELS:
        gram = kernel(x, x)
        np.testing.assert_allclose(gram, gram.T, atol=1e-12)
        np.testing.assert_allclose(np.diagonal(gram), kernel.diagonal(x), rtol=1e-12, atol=1e-12)
        assert np.linalg.eigvalsh(gram)[0] > -1e-10 * max(1.0, np.abs(gram).max())


@pytest.mark.parametrize(
    ("kernel", "draw"),
    [
        (k.ArcCosine(0), lambda u, v: 2 * (u > 0) * (v > 0)),
        (k.ArcCosine(1), lambda u, v: 2 * np.maximum(u, 0) * np.maximum(v, 0)),
        (k.ArcCosine(2), lambda u, v: 2 * np.maximum(u, 0) ** 2 * np.maximum(v, 0) ** 2),
    ],
)
def test_arc_cosine_is_its_expectation(kernel: k.Kernel, draw: Callable) -> None:
    x, z = np.array([[1.0, 0.5]]), np.array([[-0.3, 0.8]])
    # In the plane the expectation over w is one over its angle times a moment of its length.
    angle = (np.arange(200_000) + 0.5) / 200_000 * 2 * np.pi
    w = np.stack([np.cos(angle), np.sin(angle)])
    moment = {0: 1.0, 1: 2.0, 2: 8.0}[kernel.order]  # E r^(2n) for r^2 chi-square with 2 degrees of freedom
    expected = moment * draw((x @ w)[0], (z @ w)[0]).mean()
    np.testing.assert_allclose(kernel(x, z)[0, 0], expected, rtol=1e-4)
    ntk = k.TwoLayerNTK(True)(x, z)[0, 0]
    np.testing.assert_allclose(ntk, (x @ z.T)[0, 0] * k.ArcCosine(0)(x, z)[0, 0] / 2 + k.ArcCosine(1)(x, z)[0, 0] / 2)


def test_arc_cosine_keeps_precision_for_nearly_parallel_points() -> None:
    x, z = np.array([[1.0, 0.0]]), np.array([[1.0, 1e-9]])
    assert 1 - k.ArcCosine(0)(x, z)[0, 0] == pytest.approx(1e-9 / np.pi, rel=1e-5)


def test_feature_kernels() -> None:
    rng = np.random.default_rng(0)
    x, z = rng.uniform(-1, 1, 5), rng.uniform(-1, 1, 4)
    np.testing.assert_allclose(k.Monomials(2)(x), np.stack([np.ones(5), x, x**2], axis=1))
    np.testing.assert_allclose(k.Chebyshev(5, 2)(x)[:, 5], 32 * x**5 - 32 * x**3 + 6 * x, atol=1e-12)
    np.testing.assert_allclose(k.Chebyshev(3)(x)[:, 3], 4 * x**3 - 3 * x, atol=1e-12)
    np.testing.assert_allclose(k.FeatureKernel(k.Identity())(x, z), np.outer(x, z), atol=1e-15)
    np.testing.assert_allclose(k.Sobolev()(abs(x), abs(z)), np.minimum.outer(abs(x), abs(z)))


@pytest.mark.parametrize(("name", "kernel"), [("rbf", k.RBF(0.8)), ("laplace", k.Laplace(0.8))])
def test_random_features_approach_their_kernel(name: str, kernel: k.Kernel) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (20, 3))
    errors = [
        np.abs(k.FeatureKernel(k.random_fourier(3, d, rng, 0.8, name))(x, x) - kernel(x, x)).mean()
        for d in (200, 20_000)
    ]
    assert errors[1] < 0.01
    assert errors[1] < errors[0] / 4  # the error falls with the root of the number of features


def test_precomputed_is_any_kernel() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (12, 2))
    gram = k.RBF(0.5)(x, x)
    direct = k.KernelFederation.of(k.RBF(0.5), [x[:4], x[4:9]], k.GradientSteps(0.3, 4))
    given_ = k.KernelFederation.of(k.Precomputed(gram), [np.arange(4), np.arange(4, 9)], k.GradientSteps(0.3, 4))
    y = rng.standard_normal(9)
    np.testing.assert_allclose(
        k.trajectory(given_, y).predict(np.arange(9, 12), 7), k.trajectory(direct, y).predict(x[9:], 7), atol=1e-13
    )


def test_bad_kernels_are_refused() -> None:
    x = np.ones((2, 2))
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: k.RBF(0.0), "lengthscale"),
        (lambda: k.Polynomial(0), "degree"),
        (lambda: k.Linear(-1.0), "bias"),
        (lambda: k.ArcCosine(3), "order"),
        (lambda: k.Sobolev()(x, x), "one-dimensional"),
        (lambda: k.Sobolev()(np.array([-1.0]), np.array([1.0])), ">= 0"),
        (lambda: k.Monomials(3)(x), "one-dimensional"),
        (lambda: k.Monomials(-1), "degree"),
        (lambda: k.Chebyshev(3, 3), "kind 1 or 2"),
        (lambda: k.Precomputed(np.array([[1.0, 0.5], [0.0, 1.0]])), "symmetric"),
        (lambda: k.Precomputed(np.eye(2))(np.array([2.0]), np.array([0.0])), "row numbers"),
        (lambda: k.Precomputed(np.eye(2))(np.array([0.5]), np.array([0.0])), "row numbers"),
        (lambda: k.random_fourier(2, 3, np.random.default_rng(0)), "even number"),
        (lambda: k.random_fourier(2, 4, np.random.default_rng(0), kernel="rbff"), "did you mean 'rbf'"),
        (lambda: k.random_fourier(2, 4, np.random.default_rng(0))(np.ones((3, 3))), "take 2 columns, not 3"),
    ]
    for call, text in cases:
        with pytest.raises(InputError, match=text):
            call()

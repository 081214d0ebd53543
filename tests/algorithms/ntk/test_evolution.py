"""The evolution of a linearised network against matrix functions, SciPy's integrators and plain descent."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.linalg import expm
from torch import Tensor

from parley.algorithms.ntk import evolution as module
from parley.algorithms.ntk.evolution import Dynamics, Evolution, largest_eigenvalue
from parley.core.errors import InputError

TIMES = (1, 2, 7, 40)


def problem(seed: int, n: int, outputs: int, spread: float = 3.0) -> tuple[Tensor, Tensor, Tensor]:
    """A kernel with eigenvalues from 1 down to 10^-spread, outputs and one-hot labels."""
    random = np.random.default_rng(seed)
    q = np.linalg.qr(random.normal(size=(n, n)))[0]
    h = torch.from_numpy(q * 10 ** -np.linspace(0, spread, n) @ q.T)
    y = torch.nn.functional.one_hot(torch.from_numpy(random.integers(0, outputs, n)), outputs).double()
    return h, torch.from_numpy(random.normal(size=(n, outputs))), y


def apart(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def written_out(h: Tensor, f: Tensor, y: Tensor, rate: float, dynamics: Dynamics, t: int) -> Tensor:
    """S_t of mean squares as sums of matrix powers and exponentials, or for the flow its integral."""
    n, r = len(h), f - y
    if dynamics == "flow":  # the upper right block of the exponential of [[-cH, I], [0, 0]] t is the integral
        whole = np.zeros((2 * n, 2 * n))
        whole[:n, :n], whole[:n, n:] = -rate * h.numpy() * t, np.eye(n) * t
        return torch.from_numpy(expm(whole)[:n, n:]) @ r
    one = torch.from_numpy(expm(-rate * h.numpy())) if dynamics == "printed" else torch.eye(n) - rate * h
    return sum((torch.linalg.matrix_power(one, u) @ r for u in range(t)), torch.zeros_like(r))


def mean_squares_agree(seed: int, n: int, rate: float, dynamics: Dynamics) -> None:
    h, f, y = problem(seed, n, 3)
    found = Evolution(lambda r: h @ r, f, y, rate, False, dynamics, 1e-11).cumulative(TIMES)
    for t, s in zip(TIMES, found, strict=True):
        assert apart(s, written_out(h, f, y, rate, dynamics, t)) < 1e-10


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 12), st.floats(0.01, 1.9), st.sampled_from(["flow", "steps", "printed"]))
def test_mean_squares_are_functions_of_the_kernel(seed: int, n: int, rate: float, dynamics: Dynamics) -> None:
    mean_squares_agree(seed, n, rate, dynamics)


@pytest.mark.parametrize("classes", [True, False])
def test_steps_are_gradient_descent(classes: bool) -> None:
    h, f, y = problem(1, 8, 4)
    found = Evolution(lambda r: h @ r, f, y, 1.5, classes, "steps", 1e-11).cumulative(TIMES)
    g, s = f, torch.zeros_like(f)
    for u in range(1, TIMES[-1] + 1):
        r = (g.softmax(1) if classes else g) - y
        g, s = g - 1.5 * h @ r, s + r
        if u in TIMES:
            assert apart(found[TIMES.index(u)], s) < 1e-10


def flow_agrees(seed: int, rate: float, end: int, tolerance: float) -> int:
    """The flow of cross-entropy against SciPy's implicit integrator; the number of products it took."""
    h, f, y = problem(seed, 9, 3)
    calls = 0

    def product(r: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return h @ r

    grid = [end // 10, end // 3, end]
    found = Evolution(product, f, y, rate, True, "flow", tolerance).cumulative(grid)

    def slope(_: float, s: np.ndarray) -> np.ndarray:
        g = f - rate * h @ torch.from_numpy(s).view_as(f)
        return (g.softmax(1) - y).numpy().ravel()

    exact = solve_ivp(slope, (0, end), np.zeros(f.numel()), "LSODA", grid, rtol=1e-11, atol=1e-11).y.T
    for s, expected in zip(found, exact, strict=True):
        assert apart(s, torch.from_numpy(expected).view_as(f)) < 20 * tolerance  # errors of the steps add up
    return calls


@pytest.mark.parametrize(("rate", "end"), [(0.01, 30), (0.5, 100), (3.0, 1000), (50.0, 1000)])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-5])
def test_cross_entropy_flows_as_scipy_says(rate: float, end: int, tolerance: float) -> None:
    flow_agrees(3, rate, end, tolerance)


def test_a_stiff_flow_takes_few_products() -> None:
    assert flow_agrees(4, 2.5, 2000, 1e-3) < 300  # plain steps take 2,000, and are unstable from a rate of 4


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31))
def test_small_steps_approach_the_flow(seed: int) -> None:
    h, f, y = problem(seed, 6, 3)
    gaps = []
    for rate, t in ((0.1, 20), (0.01, 200)):
        flow, steps = (
            Evolution(lambda r: h @ r, f, y, rate, True, d, 1e-8).cumulative([t])[0] * rate for d in ("flow", "steps")
        )
        gaps.append(apart(steps, flow))
    assert gaps[1] < gaps[0] / 5  # first order


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40), st.floats(0.0, 4.0))
def test_the_bound_of_the_spectrum_is_one_and_close(seed: int, n: int, spread: float) -> None:
    h, f, _ = problem(seed, n, 2, spread)
    assert 1 - 1e-12 <= largest_eigenvalue(lambda r: h @ r, f) <= 1.6


def test_a_kernel_of_zeros_leaves_everything() -> None:
    _, f, y = problem(0, 4, 3)
    for classes in (True, False):
        found = Evolution(torch.zeros_like, f, y, 0.1, classes).cumulative([5])
        torch.testing.assert_close(found[0], 5 * ((f.softmax(1) if classes else f) - y))


def test_bad_input_is_refused_in_a_sentence() -> None:
    h, f, y = problem(0, 4, 3)
    one = Evolution(lambda r: h @ r, f, y, 0.1, True, "printed")
    with pytest.raises(InputError, match="printed for mean squares"):
        one.cumulative([1])
    for grid in ([], [0, 1], [2, 1], [1, 1]):
        with pytest.raises(InputError, match="must rise"):
            one.cumulative(grid)
    with pytest.raises(InputError, match="not all finite"):
        Evolution(lambda r: h @ r, f * torch.nan, y, 0.1, True).cumulative([5])


def late_sums(patch: pytest.MonkeyPatch) -> None:
    own = module._phi
    patch.setattr(module, "_phi", lambda d, t, z: own(d, t + 1, z))


def half_the_rate(patch: pytest.MonkeyPatch) -> None:
    own = module._phi
    patch.setattr(module, "_phi", lambda d, t, z: own(d, t, z / 2))


@pytest.mark.parametrize("mistake", [late_sums, half_the_rate], ids=lambda m: m.__name__)
def test_mistakes_are_noticed(monkeypatch: pytest.MonkeyPatch, mistake) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        mean_squares_agree(0, 6, 0.5, "printed")

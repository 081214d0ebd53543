"""Weak learners: each fits in the norm that it is asked for, and what it sends is what it predicts with."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.kernel_ridge import KernelRidge as Reference
from torch import nn

from parley.algorithms.boosting.weak import Increment, KernelRidge, Learner, Linear, Network, RegressionTree, Slopes
from parley.algorithms.boosting.weak.lipschitz import Extension, between, steepest
from parley.algorithms.boosting.weak.network import fresh_weights
from parley.algorithms.boosting.weak.oracle import LipschitzOracle, Oracle, achieved
from parley.conformance.boosting_oracles import Cones
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Message
from parley.core.wire import decode, encode
from parley.data import DataInfo
from parley.training.losses import half_squares
from parley.training.task import Task


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 2))


def task(module: nn.Module | None = None) -> Task:
    return Task(module, half_squares, DataInfo("waves", (2,), 2, "regression"), 1)


def waves(n: int = 60, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(n, 2))).to(dtype)
    return x, torch.stack([torch.sin(2 * x[:, 0]), x.sum(1)], dim=1).double()


LEARNERS: list[Learner] = [RegressionTree(3), Linear(), KernelRidge(), Network(epochs=30, lr=0.02)]


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda one: type(one).__name__)
def test_learners_survive_the_wire_and_add_up(learner: Learner):
    """What is decoded predicts the same bits; a sum is the sum, of one row as of many."""
    about = task(network())
    x, phi = waves()
    made = [learner.fit(about, x, phi * scale, Key(scale)) for scale in (1, 2, 3)]
    joined = learner.joined(made)
    form = learner.form(about, 3)
    assert form is None or form.check(joined) is None
    assert learner.sound(about, joined)
    back = decode(encode(Message.of(learners=joined)))["learners"]
    coefficients = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    total = learner.sum(about, back, coefficients, x)
    assert torch.equal(total, learner.sum(about, joined, coefficients, x))
    expected = sum(c * learner.values(about, one, x) for c, one in zip(coefficients, made, strict=True))
    torch.testing.assert_close(total, expected, rtol=1e-10, atol=1e-10)
    assert achieved(learner.values(about, made[0], x), phi, "l2") > 0.2


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda one: type(one).__name__)
def test_rounds_fold_to_the_bit_however_they_are_grouped(learner: Learner):
    about = task(network())
    x, phi = waves(50)
    rounds = [
        Increment(
            learner.joined([learner.fit(about, x, phi * scale, Key(scale + i)) for i in range(2)]),
            torch.tensor([0.3, 0.7 * scale], dtype=torch.float64),
            torch.tensor(0.9 / scale, dtype=torch.float64),
        )
        for scale in (1, 2, 3)
    ]
    one_by_one = None
    for each in rounds:
        one_by_one = learner.fold(about, [each], x, one_by_one)
    assert torch.equal(learner.fold(about, rounds, x, None), one_by_one)
    first = learner.fold(about, rounds[:2], x, None)
    assert torch.equal(learner.fold(about, rounds[2:], x, first), one_by_one)


def test_linear_and_kernel_models_are_scikit_learns():
    about, (x, phi) = task(), waves(dtype=torch.float64)
    ones = np.column_stack([x, np.ones(len(x))])
    exact = ones @ np.linalg.lstsq(ones, phi.numpy())[0]
    linear = Linear(ridge=0.0)
    np.testing.assert_allclose(linear.values(about, linear.fit(about, x, phi, Key()), x), exact, atol=1e-10)
    kernel = KernelRidge(width=0.7, ridge=0.3)
    reference = Reference(alpha=0.3, kernel="rbf", gamma=1 / (2 * 0.7**2)).fit(x.numpy(), phi.numpy())
    new = torch.randn(9, 2, dtype=torch.float64, generator=Key(1).torch())
    found = kernel.values(about, kernel.fit(about, x, phi, Key()), new)
    np.testing.assert_allclose(found, reference.predict(new.numpy()), atol=1e-10)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_the_least_maximum_is_least(seed: int):
    """Of linear models, by a linear program: no neighbour is better; of trees, no other leaf values are."""
    about = task()
    x, phi = waves(15, seed, torch.float64)
    random = np.random.default_rng(seed)
    linear = Linear()
    best = linear.fit(about, x, phi, Key(), "l-infinity")
    errors = (linear.values(about, best, x) - phi).abs().amax(0)
    for _ in range(5):
        moved = {name: value + 0.1 * torch.from_numpy(random.normal(size=value.shape)) for name, value in best.items()}
        assert ((linear.values(about, moved, x) - phi).abs().amax(0) >= errors - 1e-9).all()
    tree = RegressionTree(2)
    grown = tree.fit(about, x, phi, Key(), "l-infinity")
    errors = (tree.values(about, grown, x) - phi).abs().amax(0)
    squares = tree.values(about, tree.fit(about, x, phi, Key()), x)
    assert ((squares - phi).abs().amax(0) >= errors - 1e-9).all()


def test_networks_in_the_three_norms():
    about, (x, phi) = task(network()), waves()
    weak = Network(epochs=80, lr=0.02)
    squares, largest = (weak.values(about, weak.fit(about, x, phi, Key(1), n), x) - phi for n in ("l2", "l-infinity"))
    assert largest.norm(dim=1).max() < squares.norm(dim=1).max()
    at = between(x, Key(2))
    slopes = torch.zeros(len(at), 2, 2, dtype=torch.float64)
    slopes[:, 0, 0], slopes[:, 1] = 2 * torch.cos(2 * at[:, 0].double()), 1.0
    wanted = Slopes(at, torch.stack([torch.sin(2 * at[:, 0]), at.sum(1)], 1).double(), slopes)
    steep, flat = (weak.fit(about, x, phi, Key(1), n, wanted) for n in ("lipschitz", "l2"))
    off = [float((weak.slopes(about, one, at) - slopes).square().mean()) for one in (steep, flat)]
    assert off[0] < off[1] / 2


def test_the_gradient_of_a_network_is_autograds():
    about, (x, phi) = task(network().double()), waves(5, dtype=torch.float64)
    weak = Network(epochs=2)
    learner = weak.fit(about, x, phi, Key(1))
    slopes, step = weak.slopes(about, learner, x), 1e-6
    for column in range(2):
        moved = x.clone()
        moved[:, column] += step
        numeric = (weak.values(about, learner, moved) - weak.values(about, learner, x)) / step
        torch.testing.assert_close(slopes[:, :, column], numeric, rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12))
def test_the_extension_goes_through_the_labels_with_their_slope(seed: int, n: int):
    """(13): u = y at the samples, L-Lipschitz everywhere, its gradient that of the nearest cone."""
    random = np.random.default_rng(seed)
    x, y = torch.from_numpy(random.normal(size=(n, 3))), torch.from_numpy(random.normal(size=(n, 2)))
    u = Extension.of(x, y)
    torch.testing.assert_close(u.values(x), y, rtol=0, atol=1e-9)
    at = torch.from_numpy(random.normal(size=(40, 3)) * 3)
    assert steepest(torch.cat([x, at]), torch.cat([y, u.values(at)])) <= u.constant * (1 + 1e-9)
    gradients = u.gradients(at)
    torch.testing.assert_close(
        gradients.norm(dim=2), torch.full((40, 2), u.constant, dtype=torch.float64), rtol=1e-9, atol=0
    )
    step = 1e-7 * gradients[:, 0] / u.constant
    rise = (u.values(at + step) - u.values(at))[:, 0]
    near_ridge = (rise - 1e-7 * u.constant).abs() > 1e-9 * max(u.constant, 1)
    assert near_ridge.float().mean() < 0.2


def test_labels_that_no_slope_fits_are_refused():
    x, y = torch.tensor([[0.0], [0.0], [1.0]]), torch.tensor([[0.0], [1.0], [0.0]]).double()
    with pytest.raises(InputError, match="different labels at the same input"):
        Extension.of(x, y)
    with pytest.raises(InputError, match=r"change by 1 per unit of input, more than 0.5"):
        Extension.of(x[1:], y[1:], 0.5)


def test_the_lipschitz_oracle_keeps_the_residual_between_the_samples():
    """phi^k = k u - sum of the learners so far, there too."""
    about = Task(None, half_squares, DataInfo("line", (1,), 1, "regression"), 1)
    x = torch.linspace(0, 2, 9, dtype=torch.float64)[:, None]
    u = Extension.of(x, torch.sin(2 * x))
    cones = Cones(0.5)
    oracle = LipschitzOracle(cones, about, x, u, Key(3), residual=True)
    total, there, steep = torch.zeros(9, 1, dtype=torch.float64), 0.0, 0.0
    for k in range(1, 4):
        answer = oracle(k * u.y - total, Key(k))
        total = total + answer.values
        there = there + cones.values(about, answer.learner, oracle.at)
        steep = steep + cones.slopes(about, answer.learner, oracle.at)
        torch.testing.assert_close(oracle.missed[0], there - k * u.values(oracle.at), rtol=0, atol=1e-12)
        torch.testing.assert_close(oracle.missed[1], steep - k * u.gradients(oracle.at), rtol=0, atol=1e-12)
        assert answer.gamma == pytest.approx(0.5)
        assert answer.parts == pytest.approx({"values": 0.5, "constant": 0.5})


def test_gamma_says_what_was_achieved():
    phi = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    assert achieved(0.3 * phi, phi, "l2") == pytest.approx(0.3)
    assert achieved(torch.zeros_like(phi), phi, "l-infinity") == 0
    assert achieved(torch.zeros_like(phi), torch.zeros_like(phi), "l2") == 1

    class Backwards(Linear):
        def fit(self, *arguments, **options):
            return {name: -value for name, value in super().fit(*arguments, **options).items()}

    x, phi = waves()
    with pytest.raises(InputError, match=r"gamma = -.* in \"l2\"\), so it learns nothing"):
        Oracle(Backwards(), task(), x, "l2")(phi, Key())


def test_networks_start_afresh_and_leave_the_module_alone():
    module = network()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.random.get_rng_state()
    one, again, other = (fresh_weights(module, Key(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["0.weight"], other["0.weight"])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    with pytest.raises(InputError, match="Own cannot draw its weights anew"):
        fresh_weights(nn.Sequential(nn.Linear(2, 2), Own()), Key())


def test_settings_are_checked():
    for make, says in (
        (lambda: RegressionTree(0), "at least 1"), (lambda: RegressionTree(13), "depth from 0 to 12"),
        (lambda: Network(clip=0.0), "clip must be above 0"), (lambda: Network(epochs=0), "epochs"),
        (lambda: KernelRidge(width=0.0), "above 0"), (lambda: Linear(ridge=-1.0), "at least 0"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=says):
            make()

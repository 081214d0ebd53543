"""L, mu, C and the distance of the start, against exact spectra and closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.advise.curvature import ball, estimate
from parley.advise.lanczos import extremes
from parley.advise.objective import Objective
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.tree import flat
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.models import Lstm, build_module, features, linear, mlp
from parley.models.feature_model import RandomFourierFeatures
from parley.training.losses import losses
from parley.training.task import Task


def federation_of(clients: list[ClientData], outputs: int, kind: str = "regression") -> Federation:
    info = DataInfo("made", tuple(clients[0].x.shape[1:]), outputs, kind)
    return Federation(info, tuple(f"c{i}" for i in range(len(clients))), InMemory(tuple(clients)))


def task_of(federation: Federation, model, loss: str) -> Task:
    module = build_module(model, federation.info.shape, federation.info.outputs, Key(3))
    return Task(module, losses[loss], federation.info, len(federation))


def regression(sizes: tuple[int, ...] = (30, 50, 40), features: int = 4, outputs: int = 1, seed: int = 0) -> Federation:
    random = np.random.default_rng(seed)
    clients = []
    for size in sizes:
        x = random.standard_normal((size, features)) * random.uniform(0.3, 3.0, features)
        y = x @ random.standard_normal((features, outputs)) + random.standard_normal((size, outputs))
        clients.append(ClientData(torch.from_numpy(x), torch.from_numpy(y)))
    return federation_of(clients, outputs)


def classification(seed: int = 0) -> Federation:
    random = np.random.default_rng(seed)
    clients = [
        ClientData(torch.from_numpy(random.standard_normal((20, 3))), torch.from_numpy(random.integers(0, 3, 20)))
        for _ in range(3)
    ]
    return federation_of(clients, 3, "classification")


def dense_hessian(objective: Objective, x: np.ndarray) -> np.ndarray:
    """The Hessian by torch's own double differentiation of a flat function, column by column."""
    vector = torch.from_numpy(x)

    def value(v: torch.Tensor) -> torch.Tensor:
        named = [name for name, p in objective.module.named_parameters() if p.requires_grad]
        parts = v.split([leaf.numel() for leaf in objective.leaves])
        weights = {n: p.view_as(leaf) for n, p, leaf in zip(named, parts, objective.leaves, strict=True)}
        outputs = torch.func.functional_call(objective.module, weights, (objective.data.x,))
        return objective.loss(outputs, objective.data.y).mean() + objective.ridge / 2 * v.square().sum()

    return torch.autograd.functional.hessian(value, vector).numpy()


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_lanczos_finds_both_ends(seed: int, dimension: int):
    random = np.random.default_rng(seed)
    matrix = random.standard_normal((dimension, dimension))
    matrix = matrix + matrix.T
    found = extremes(lambda v: matrix @ v, dimension, random)
    values = np.linalg.eigvalsh(matrix)
    scale = np.abs(values).max()
    assert found.lowest == pytest.approx(values[0], abs=1e-7 * scale)
    assert found.highest == pytest.approx(values[-1], abs=1e-7 * scale)
    assert found.products <= dimension


def test_lanczos_stays_inside_the_spectrum_and_tells_its_error():
    random = np.random.default_rng(0)
    values = np.geomspace(1e-6, 1.0, 400)
    found = extremes(lambda v: values * v, 400, random, steps=15)
    assert values[0] <= found.lowest <= found.highest <= 1.0 + 1e-12
    assert np.abs(values - found.highest).min() <= found.highest_error + 1e-14
    assert np.abs(values - found.lowest).min() <= found.lowest_error + 1e-14
    assert found.lowest_error > 1e-6  # fifteen products cannot know the low end


@pytest.mark.parametrize("model", [mlp(5, activation="tanh"), linear()])
def test_products_are_those_of_the_hessian(model):
    federation = classification()
    task = task_of(federation, model, "cross-entropy")
    objective = Objective(task, federation.client("c0"), ridge=0.3, chunk=7)
    x = flat(task.initial())
    hessian = dense_hessian(objective, x)
    v = np.random.default_rng(1).standard_normal(len(x))
    np.testing.assert_allclose(objective.product(x, v), hessian @ v, atol=1e-12)


def test_recurrent_models_have_products_too():
    random = np.random.default_rng(0)
    data = ClientData(torch.from_numpy(random.integers(0, 4, (6, 5))), torch.from_numpy(random.integers(0, 4, 6)))
    federation = federation_of([data], 4, "text")
    task = task_of(federation, Lstm(embedding=2, hidden=3, layers=1), "cross-entropy")
    objective, x = Objective(task, data), flat(task.initial())
    v = random.standard_normal(len(x))
    ahead, behind = (objective.value_and_gradient(x + sign * 1e-5 * v)[1] for sign in (1, -1))
    np.testing.assert_allclose(objective.product(x, v), (ahead - behind) / 2e-5, atol=1e-8)


@pytest.mark.parametrize(("loss", "scale"), [("half-squares", 1.0), ("mse", 2.0 / 3)])
@pytest.mark.parametrize("ridge", [0.0, 0.7])
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_linear_models_are_exact(loss: str, scale: float, ridge: float, weights: str):
    federation = regression(outputs=3)
    task = task_of(federation, linear(), loss)
    found = estimate(task, federation, ridge=ridge, weights=weights)
    assert found.exact
    designs = [np.hstack([federation.client(i).x.numpy(), np.ones((federation.size(i), 1))]) for i in federation.ids]
    hessians = [scale * Z.T @ Z / len(Z) + ridge * np.eye(5) for Z in designs]
    spectra = np.array([np.linalg.eigvalsh(A) for A in hessians])
    np.testing.assert_allclose([found.mu, found.L], [spectra.min(), spectra.max()], rtol=1e-12)
    shares = np.array([30, 50, 40]) / 120 if weights == "size" else np.full(3, 1 / 3)
    mean = sum(p * A for p, A in zip(shares, hessians, strict=True))
    np.testing.assert_allclose(found.pooled, np.linalg.eigvalsh(mean)[[0, -1]], rtol=1e-12)
    # The minimisers are those of the training objective itself: its gradients vanish there.
    assert found.quadratics is not None
    assert found.start is not None
    for i, client in enumerate(federation.ids):
        objective = Objective(task, federation.client(client), ridge)
        by_output = found.quadratics.c[i].reshape(3, 5)
        x = np.concatenate([by_output[:, :4].ravel(), by_output[:, 4]])
        assert np.linalg.norm(objective.value_and_gradient(x)[1]) < 1e-12
    best = found.quadratics.empirical_minimiser
    assert found.distance == pytest.approx(np.linalg.norm(found.start - best), rel=1e-10)
    np.testing.assert_allclose(found.quadratics.p, shares)


def test_lanczos_agrees_with_the_closed_form():
    """A linear model in a wrapper that hides its structure takes the general way and must give the same numbers."""

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    federation = regression(outputs=2)
    module = build_module(Hidden, (4,), 2, Key(0))
    general = Task(module, losses["half-squares"], federation.info, 3)
    plain = Task(torch.nn.Sequential(module.inner), losses["half-squares"], federation.info, 3)
    measured, exact = (estimate(task, federation, ridge=0.1) for task in (general, plain))
    assert exact.exact
    assert not measured.exact
    for name in ("L", "mu", "C", "distance"):
        assert getattr(measured, name) == pytest.approx(getattr(exact, name), rel=1e-6), name
    np.testing.assert_allclose(measured.pooled, exact.pooled, rtol=1e-6)
    assert "not linear" in measured.notes[0]


def test_feature_and_kernel_models_are_exact():
    """Least squares on a kernel's features: the closed form against products with the Hessian and a descent."""
    federation = regression((25, 30), features=2)
    task = task_of(federation, features(RandomFourierFeatures(6, lengthscale=2.0)), "half-squares")
    found = estimate(task, federation, ridge=0.05)
    assert found.exact
    assert found.quadratics is not None
    assert found.quadratics.c.shape == (2, 6)
    assert found.distance == pytest.approx(float(np.linalg.norm(found.quadratics.empirical_minimiser)), rel=1e-9)
    for number, id in enumerate(federation.ids):
        objective = Objective(task, federation.client(id), 0.05)
        v = np.random.default_rng(number).standard_normal(6)
        np.testing.assert_allclose(objective.product(np.zeros(6), v), found.quadratics.A[number] @ v, rtol=1e-9)
        _, slope = objective.value_and_gradient(found.quadratics.c[number])
        assert np.linalg.norm(slope) < 1e-10


def test_modules_may_have_weights_they_do_not_use():
    class Partly(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = torch.nn.Linear(4, 1), torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x) ** 3

    federation = regression()
    objective = Objective(task_of(federation, Partly(), "mse"), federation.client("c0"), 0.1)
    x = np.random.default_rng(0).standard_normal(objective.dimension)
    value, slope = objective.value_and_gradient(x)
    assert np.isfinite(value)
    np.testing.assert_allclose(slope[5:], 0.1 * x[5:])  # only the ridge pulls on what is not used
    np.testing.assert_allclose(objective.product(x, np.eye(len(x))[7]), 0.1 * np.eye(len(x))[7], atol=1e-12)


def test_logistic_regression_has_the_spectrum_of_its_hessian():
    federation = classification()
    task = task_of(federation, linear(), "cross-entropy")
    found = estimate(task, federation, ridge=0.05)
    x = flat(task.initial())
    ends = [
        np.linalg.eigvalsh(dense_hessian(Objective(task, federation.client(i), 0.05), x))[[0, -1]]
        for i in federation.ids
    ]
    np.testing.assert_allclose(found.spectra, ends, rtol=1e-6)
    assert found.mu == pytest.approx(0.05, rel=1e-6)  # adding a constant to all logits changes nothing


def test_flat_directions_need_a_ridge_or_a_mu():
    federation = regression(sizes=(3, 50), features=6)
    task = task_of(federation, linear(bias=False), "half-squares")
    with pytest.raises(InputError, match=r"client 'c0' has flat directions.*add a ridge \(weight decay\)"):
        estimate(task, federation)
    found = estimate(task, federation, mu=0.2)
    assert found.mu == 0.2
    assert found.quadratics is None
    assert "flatter directions are taken not to matter" in found.notes[0]
    # Of a client's many minimisers the one that gradient descent reaches from the start is taken.
    start = flat(task.initial())
    own = federation.client("c0")
    x = start.copy()
    for _ in range(20_000):
        x -= 0.05 * own.x.numpy().T @ (own.x.numpy() @ x - own.y.numpy()[:, 0]) / 3
    full = np.linalg.lstsq(federation.client("c1").x.numpy(), federation.client("c1").y.numpy()[:, 0])[0]
    np.testing.assert_allclose(found.C, np.linalg.norm(x - full) / 2, rtol=1e-3)
    assert estimate(task, federation, ridge=0.1).mu == pytest.approx(0.1, rel=1e-6)


def test_a_network_that_is_not_convex_says_so():
    federation = classification()
    task = task_of(federation, mlp(6, activation="tanh"), "cross-entropy")
    with pytest.raises(InputError, match=r"curves downwards \(it is not convex\).*add a ridge above"):
        estimate(task, federation)
    found = estimate(task, federation, mu=0.05, iterations=2)
    assert found.mu == 0.05
    assert any("not convex" in note for note in found.notes)
    assert any("2 steps of L-BFGS" in note for note in found.notes)
    lifted = estimate(task, federation, ridge=1.0)
    objective = Objective(task, federation.client("c0"), 1.0)
    values = np.linalg.eigvalsh(dense_hessian(objective, flat(task.initial())))
    np.testing.assert_allclose(lifted.spectra[0], values[[0, -1]], rtol=1e-6)


def test_clients_and_samples_can_be_limited():
    federation = regression(sizes=(30, 50, 40, 60, 20))
    task = task_of(federation, linear(), "half-squares")
    found = estimate(task, federation, clients=2, samples=10)
    assert len(found.ids) == 2
    assert estimate(task, federation, clients=2, samples=10).L == found.L
    assert estimate(task, federation, clients=2, samples=10, key=Key(5)).L != found.L
    assert len(estimate(task, federation, clients=9).ids) == 5


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ridge": -1.0}, "ridge must be finite and at least 0, not -1."),
        ({"mu": 0.0}, "mu must be finite and positive, not 0."),
        ({"clients": 0}, "the number of clients to look at must be at least 1, not 0."),
        ({"samples": 0}, "the number of samples to look at must be at least 1, not 0."),
    ],
)
def test_options_that_make_no_sense(options: dict, sentence: str):
    federation = regression()
    with pytest.raises(InputError) as error:
        estimate(task_of(federation, linear(), "mse"), federation, **options)
    assert str(error.value) == sentence


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 5))
def test_the_ball_holds_all_points_and_is_small(seed: int, count: int, dimension: int):
    points = np.random.default_rng(seed).standard_normal((count, dimension))
    pairs = np.linalg.norm(points[:, None] - points[None], axis=-1)
    radius = ball(points)
    # Jung's theorem bounds the smallest ball from above, half the largest distance from below.
    assert radius >= pairs.max() / 2 * (1 - 1e-9)
    assert radius <= pairs.max() * np.sqrt(dimension / (2 * (dimension + 1))) * 1.01 + 1e-12


def test_the_ball_of_a_regular_simplex():
    corners = np.eye(5)
    assert ball(corners) == pytest.approx(np.sqrt(4 / 5), rel=1e-3)

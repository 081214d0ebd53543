"""Kernel regression by the engine against Proposition 3 of paper 000, written out here with dense matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from parley.algorithms.kernel import exact as on_points
from parley.algorithms.kernel import least_squares
from parley.algorithms.kernel.exact import KernelFedAvg, KernelFedProx
from parley.algorithms.kernel.features import FeatureFedAvg, FeatureFedProx
from parley.algorithms.kernel.least_squares import LeastSquares
from parley.core.errors import InputError, QuorumError, WireError
from parley.core.message import Message
from parley.core.wire import wire_size
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.listeners import Listener
from parley.engine.settings import Faults, Sampling
from parley.models.feature_model import FeatureModel
from parley.store.runs import RunStore
from parley.study.train import make_task, train
from parley.theory import kernel as theory

quick = settings(deadline=None, max_examples=12)
IDS = ("b/0", "a", "d", "c", "e")  # out of order, and one with a slash in it


@dataclass
class Toy:
    """Points, some of them shared between clients and within one, targets [n_i, outputs] and features of both kinds."""

    x: list[np.ndarray]
    y: list[np.ndarray]
    phi: theory.FeatureMap

    @classmethod
    def drawn(cls, seed: int, sizes: tuple[int, ...], outputs: int = 1, features: int = 6) -> Toy:
        rng = np.random.default_rng(seed)
        x = [rng.normal(size=(n, 2)) for n in sizes]
        for own in x:
            own[-1] = x[0][0]
            own[len(own) // 2] = own[0]
        return cls(x, [rng.normal(size=(n, outputs)) for n in sizes], theory.random_fourier(2, features, rng))

    @property
    def federation(self) -> Federation:
        data = tuple(ClientData(torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(self.x, self.y, strict=True))
        return Federation(
            DataInfo("toy", (2,), self.y[0].shape[1], "regression"), IDS[: len(data)], InMemory(data), test=data[-1]
        )

    @property
    def points(self) -> np.ndarray:
        return np.concatenate(self.x)

    def model(self, start: float = 0.0) -> nn.Module:
        module = FeatureModel(self.phi, (2,), self.y[0].shape[1])
        with torch.no_grad():
            module.head.weight.copy_(start * torch.arange(module.head.weight.numel()).view_as(module.head.weight).cos())
        return module

    def train(self, algorithm: LeastSquares, rounds: int, start: float = 0.0, **options):
        options = {"runtime": "inline"} | options
        return train(algorithm, self.federation, model=self.model(start), rounds=rounds, **options)


class Values(Listener):
    """f at the given points after every round, and who answered."""

    def __init__(self, points: np.ndarray) -> None:
        self.points, self.f, self.answered = torch.from_numpy(points), [], []

    def start(self, run, rounds: int) -> None:
        self.run = run

    def round(self, record) -> None:
        with torch.no_grad():
            self.f.append(self.run.predictor()(self.points).numpy())
        if record.number:
            failed = {failure.client for failure in record.failures}
            self.answered.append([i for i in record.metrics["down/bytes"].clients if i not in failed])


def blocks(toy: Toy, kernel: theory.Kernel, method: theory.KernelStep) -> list[np.ndarray]:
    """P_ii, from the definition."""
    found = []
    for x in toy.x:
        K = kernel(x, x) / len(x)
        eye = np.eye(len(x))
        if isinstance(method, theory.ProximalStep):
            found.append(np.linalg.inv(eye + method.eta * K))
        else:
            found.append(sum(np.linalg.matrix_power(eye - method.eta * K, tau) for tau in range(method.s)))
    return found


def recursion(toy: Toy, kernel: theory.Kernel, method: theory.KernelStep, f: np.ndarray, answered: list[list[str]]):
    """f_0, f_1, ...: f <- f + eta sum_i (w_i / n_i) k(., x_i) P_ii (y_i - f_i), over those that answered."""
    sizes = [len(x) for x in toy.x]
    ends = np.cumsum(sizes)
    parts = [slice(end - n, end) for end, n in zip(ends, sizes, strict=True)]
    P = blocks(toy, kernel, method)
    yield f
    for clients in answered:
        present = [IDS.index(i) for i in clients]
        total = sum(sizes[i] for i in present)
        change = sum(
            kernel(toy.points, toy.x[i]) @ P[i] @ (toy.y[i] - f[parts[i]]) * method.eta / total for i in present
        )
        f = f + change
        yield f


METHODS = {
    "fedavg, s = 1": theory.GradientSteps(0.8, 1),
    "fedavg, s = 4": theory.GradientSteps(0.8, 4),
    "fedavg, s = 60": theory.GradientSteps(0.8, 60),
    "fedprox": theory.ProximalStep(0.8),
    "fedprox, large step": theory.ProximalStep(300.0),
}


def made(form: str, method: theory.KernelStep, kernel: theory.Kernel | None = None, **options) -> LeastSquares:
    prox = isinstance(method, theory.ProximalStep)
    if form == "features":
        return FeatureFedProx(method.eta, **options) if prox else FeatureFedAvg(method.eta, steps=method.s, **options)
    common = {"lr": method.eta, "kernel": kernel} | options
    return KernelFedProx(**common) if prox else KernelFedAvg(steps=method.s, **common)


def check(
    toy: Toy,
    form: str,
    method: theory.KernelStep,
    kernel: theory.Kernel,
    start: float = 0.0,
    rounds: int = 5,
    **options,
) -> None:
    """Raises unless every round of the engine is the recursion's."""
    kernel = theory.FeatureKernel(toy.phi) if form == "features" else kernel
    seen = Values(toy.points)
    toy.train(made(form, method, kernel), rounds, start, listeners=[seen], **options)
    with torch.no_grad():
        f_0 = toy.model(start)(torch.from_numpy(toy.points)).numpy()
    wanted = np.array(list(recursion(toy, kernel, method, f_0, seen.answered)))
    assert len(seen.answered) == rounds
    assert options or all(set(clients) == set(IDS[: len(toy.x)]) for clients in seen.answered)
    np.testing.assert_allclose(seen.f, wanted, rtol=1e-8, atol=1e-8)


problems = st.builds(
    Toy.drawn,
    st.integers(0, 10**6),
    st.lists(st.sampled_from((1, 2, 3, 8, 15)), min_size=1, max_size=5).map(tuple),
    st.sampled_from((1, 3)),
    st.sampled_from((2, 6, 12)),
)
kernels = st.sampled_from((theory.RBF(0.7), theory.Laplace(1.3), theory.Polynomial(1, 0.01)))


@pytest.mark.parametrize("form", ["features", "points"])
@pytest.mark.parametrize("name", METHODS)
@quick
@given(toy=problems, kernel=kernels, start=st.sampled_from((0.0, 1.0)))
def test_every_round_is_proposition_3(form: str, name: str, toy: Toy, kernel: theory.Kernel, start: float):
    """Unbalanced clients, single points, fewer points than features, duplicates, several outputs, any start."""
    method = METHODS[name]
    if isinstance(kernel, theory.Polynomial):  # not bounded by 1
        method = replace(method, eta=method.eta / 20)
    check(toy, form, method, kernel, start)


LOSSY = Faults(dropout=0.4, quorum=0.0)


@pytest.mark.parametrize("form", ["features", "points"])
@pytest.mark.parametrize("name", ["fedavg, s = 4", "fedprox"])
@pytest.mark.parametrize("options", [{"cohort": 2}, {"faults": LOSSY}, {"cohort": 3, "faults": LOSSY}], ids=str)
def test_who_is_absent_contributes_nothing(form: str, name: str, options):
    toy = Toy.drawn(3, (4, 9, 1, 6, 6), outputs=2)
    check(toy, form, METHODS[name], theory.RBF(0.7), rounds=8, seed=5, **options)


@pytest.mark.parametrize("scheme", ["with-replacement", "unbiased"])
def test_both_forms_agree_however_clients_are_drawn(scheme):
    toy = Toy.drawn(3, (4, 9, 1, 6, 6), outputs=2)
    found = []
    for form in ("features", "points"):
        method = made(form, METHODS["fedavg, s = 4"], theory.FeatureKernel(toy.phi))
        run = toy.train(method, 8, cohort=Sampling(3, scheme), faults=LOSSY)
        found.append(run.predictor()(torch.from_numpy(toy.points)).detach().numpy())
    np.testing.assert_allclose(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", ["features", "points"])
@pytest.mark.parametrize("name", METHODS)
@quick
@given(toy=problems.filter(lambda toy: toy.y[0].shape[1] == 1), batch=st.sampled_from((1, 2, 4, 7, 100)))
def test_batches_are_section_7_1s(form: str, name: str, toy: Toy, batch: int):
    method = METHODS[name]
    kernel = theory.FeatureKernel(toy.phi)
    phi = [toy.phi(x) for x in toy.x]
    once = theory.minibatch_round(phi, [y[:, 0] for y in toy.y], method, batch)
    with torch.no_grad():
        run = toy.train(made(form, method, kernel, batch=batch), 4)
        found = run.predictor()(torch.from_numpy(toy.points)).numpy()[:, 0]
    np.testing.assert_allclose(found, np.concatenate(phi) @ once.power(4)(np.zeros(phi[0].shape[1])), atol=1e-8)


@pytest.mark.parametrize("form", ["features", "points"])
@pytest.mark.parametrize("method", [theory.GradientSteps(0.9, 20), theory.ProximalStep(50.0)], ids=str)
def test_it_ends_at_the_limit_in_closed_form(form: str, method: theory.KernelStep):
    toy = Toy.drawn(2, (3, 20, 8), features=4)
    kernel = theory.FeatureKernel(toy.phi)
    y = np.concatenate(toy.y)[:, 0]
    limit = theory.trajectory(theory.KernelFederation.of(kernel, toy.x, method), y).limit()
    with torch.no_grad():
        run = toy.train(made(form, method, kernel), 200)
        found = run.predictor()(torch.from_numpy(toy.points)).numpy()[:, 0]
    assert np.abs(limit - y).max() > 0.1  # four features cannot fit everything
    np.testing.assert_allclose(found, limit, atol=1e-8)


def test_float32_data_are_computed_with_in_float64():
    toy = Toy.drawn(4, (3, 7))
    toy = replace(toy, x=[x.astype(np.float32) for x in toy.x], y=[y.astype(np.float32) for y in toy.y])
    for form in ("features", "points"):
        run = toy.train(made(form, METHODS["fedprox"], theory.RBF(0.7)), 3)
        assert {value.dtype for value in run.state.tensors.values()} <= {torch.float64, torch.float32}
        exact = replace(toy, x=[x.astype(np.float64) for x in toy.x], y=[y.astype(np.float64) for y in toy.y])
        other = exact.train(made(form, METHODS["fedprox"], theory.RBF(0.7)), 3)
        at = torch.from_numpy(exact.points)
        assert torch.equal(run.predictor()(at), other.predictor()(at))


# -- like any other algorithm ---------------------------------------------------------------------------------------

EACH = {
    "kernel-fedavg": KernelFedAvg(0.8, kernel=theory.RBF(0.7)),
    "kernel-fedprox": KernelFedProx(5.0, 3, theory.Polynomial()),
    "feature-fedavg": FeatureFedAvg(0.8, 2),
    "feature-fedprox": FeatureFedProx(5.0),
}
ON_WORKERS = ("kernel-fedavg", "feature-fedprox")  # processes take a second to start


@pytest.mark.parametrize("name", EACH)
def test_workers_and_resuming_give_the_same_bits(name: str, tmp_path):
    toy = Toy.drawn(7, (30, 9, 1, 16, 6), outputs=2)
    options = {"cohort": 3, "faults": Faults(dropout=0.2, quorum=0.0)}
    whole = toy.train(EACH[name], 8, **options)
    runs = [toy.train(EACH[name], 8, runtime="pool", workers=2, **options)] if name in ON_WORKERS else []
    with RunStore(tmp_path) as store:
        half = toy.train(EACH[name], 4, store=store, **options)
        runs.append(toy.train(EACH[name], 8, store=store, resume=half.id, **options))
    at = torch.from_numpy(toy.points)
    for run in runs:
        assert run.state.tensors.keys() == whole.state.tensors.keys()
        assert all(torch.equal(run.state.tensors[n], value) for n, value in whole.state.tensors.items())
        assert torch.equal(run.predictor()(at), whole.predictor()(at))
        for metric in ("central/loss", "train/loss", "up/bytes", "down/bytes"):
            assert [r.metrics[metric].value for r in run.records if metric in r.metrics] == [
                r.metrics[metric].value for r in whole.records if metric in r.metrics
            ], metric


def test_the_order_of_the_points_does_not_depend_on_who_came_first():
    toy = Toy.drawn(1, (4, 5, 6, 3, 2))
    run = toy.train(EACH["kernel-fedavg"], 12, cohort=1)
    assert list(run.state["points"]) == sorted(run.state["points"])


def test_inputs_travel_once_and_nothing_but_coefficients_later():
    toy = Toy.drawn(5, (4, 9, 1))
    run = toy.train(EACH["kernel-fedprox"], 3)
    first, later, last = (record.metrics for record in run.records[1:])
    for client, x, y in zip(IDS, toy.x, toy.y, strict=False):
        points, column = Message.of(points=torch.from_numpy(x)), torch.from_numpy(y)
        ask, values = Message(), Message.of(values=column)
        answer = wire_size(Message.of(coefficients=column))
        assert later["up/bytes"].clients[client] == last["up/bytes"].clients[client] == answer
        assert later["down/bytes"].clients[client] == wire_size(values)
        assert first["up/bytes"].clients[client] == wire_size(points) + answer
        assert first["down/bytes"].clients[client] == wire_size(ask) + wire_size(values)
    features = toy.train(EACH["feature-fedavg"], 2).records[1].metrics
    weights = toy.model().head.weight.detach()
    assert set(features["up/bytes"].clients.values()) == {wire_size(Message.of(update={"head.weight": weights}))}


def test_the_server_can_solve_for_the_targets_as_the_docstring_warns():
    toy = Toy.drawn(6, (5, 7))
    method = theory.GradientSteps(0.8, 3)
    run = toy.train(made("points", method, theory.RBF(0.7)), 1)
    for client, P, y in zip(IDS, blocks(toy, theory.RBF(0.7), method), toy.y, strict=False):
        share = 0.8 / len(toy.points)  # w_i eta / n_i
        found = np.linalg.solve(share * P, run.state["coefficients"][client].numpy())
        np.testing.assert_allclose(found, y, atol=1e-9)


# -- what cannot be trained -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["features", "points"])
@pytest.mark.parametrize("batch", [None, 2])
def test_a_step_that_is_too_large_is_said(form: str, batch: int | None):
    toy = Toy.drawn(8, (4, 6))
    with pytest.raises(QuorumError, match=r"FedAvg needs gamma = .* take eta below .* or use FedProx"):
        toy.train(made(form, theory.GradientSteps(50.0, 2), theory.RBF(0.7), batch=batch), 2)
    assert toy.train(made(form, theory.ProximalStep(50.0), theory.RBF(0.7), batch=batch), 2).status == "finished"


@pytest.mark.parametrize("form", ["features", "points"])
@pytest.mark.parametrize("where", ["x", "y"])
def test_a_client_with_nan_is_left_out_and_named(form: str, where: str):
    toy = Toy.drawn(9, (4, 6, 5))
    getattr(toy, where)[1][2, 0] = np.nan
    run = toy.train(made(form, METHODS["fedprox"], theory.RBF(0.7)), 3)
    assert [f.client for f in run.records[-1].failures] == ["a"]
    assert "NaN or infinite value in row 2" in run.records[-1].failures[0].reason
    assert "a" not in run.state.get("points")
    rest = Toy([toy.x[0], toy.x[2]], [toy.y[0], toy.y[2]], toy.phi)
    alone = rest.train(made(form, METHODS["fedprox"], theory.RBF(0.7)), 3)
    at = torch.from_numpy(rest.points)
    torch.testing.assert_close(run.predictor()(at), alone.predictor()(at), rtol=1e-12, atol=1e-12)


def test_a_kernel_that_overflows_is_said():
    toy = Toy.drawn(9, (4,))
    with pytest.raises(QuorumError, match="the kernel is not finite at its points; rescale the data"):
        replace(toy, x=[1e200 * x for x in toy.x]).train(KernelFedProx(kernel=theory.Linear()), 1)


def test_replies_of_the_wrong_form_are_refused():
    toy = Toy.drawn(1, (4, 3))
    task, method = make_task(toy.federation, toy.model(), 0), EACH["kernel-fedavg"]
    values = Message.of(values=torch.zeros(4, 1, dtype=torch.float64))
    declared = {each.name: each for each in method.exchanges()}
    coefficients, points = declared["client"].form(task, values), declared["points"].form(task, Message())
    coefficients.check({"coefficients": torch.zeros(4, 1, dtype=torch.float64)})
    points.check({"points": torch.zeros(9, 2)})
    for form, reply in (
        (coefficients, {"coefficients": torch.zeros(3, 1, dtype=torch.float64)}),
        (coefficients, {"coefficients": torch.zeros(4, 1)}),
        (coefficients, {"points": torch.zeros(4, 1)}),
        (coefficients, {"coefficients": torch.zeros(4, 1, dtype=torch.float64), "more": torch.zeros(1)}),
        (points, {"points": torch.zeros(4, 3)}),
        (points, {"points": torch.zeros(4)}),
    ):
        with pytest.raises(WireError):
            form.check(reply)


def test_a_client_that_sends_a_wrong_form_is_left_out(monkeypatch: pytest.MonkeyPatch):
    toy = Toy.drawn(1, (4, 3, 4, 4))
    honest = KernelFedAvg.client

    @wraps(honest)
    def client(self, task, message, memory, data, key):
        reply = honest(self, task, message, memory, data, key)
        if "coefficients" in reply.message.tensors and len(data) == 3:
            return replace(reply, message=Message.of(coefficients=reply.message.tensor("coefficients")[:2]))
        return reply

    monkeypatch.setattr(KernelFedAvg, "client", client)
    run = toy.train(EACH["kernel-fedavg"], 2)
    assert [f.client for f in run.records[-1].failures] == ["a"]
    assert "expected torch.float64 [3, 1]" in run.records[-1].failures[0].reason


def test_other_tasks_and_settings_are_refused():
    toy = Toy.drawn(1, (4, 3))
    with pytest.raises(InputError, match='trains the model "features", not Linear'):
        train(EACH["feature-fedavg"], toy.federation, model=nn.Linear(2, 1).double(), rounds=1)
    for method in EACH.values():
        with pytest.raises(InputError, match="least squares"):
            toy.train(method, 1, loss=lambda outputs, y: (outputs - y).abs().flatten(1).sum(1))
        with pytest.raises(InputError, match="the step size eta"):
            replace(method, lr=-1.0)
        with pytest.raises(InputError, match="batch must be at least 0"):
            replace(method, batch=-1)
    with pytest.raises(InputError, match="local steps"):
        KernelFedAvg(steps=0)
    with pytest.raises(InputError, match="common part"):
        LeastSquares()


def test_its_function_cannot_be_exported_but_features_can():
    toy = Toy.drawn(1, (4, 3))
    with pytest.raises(InputError, match='no module to take out: use "parley predict"'):
        toy.train(EACH["kernel-fedavg"], 1).module()
    run = toy.train(EACH["feature-fedavg"], 2)
    at = torch.from_numpy(toy.points)
    assert torch.equal(run.module()(at).detach(), run.predictor()(at).detach())
    np.testing.assert_array_equal(run.predict(toy.points).numpy(), run.predictor()(at).detach().numpy())


def test_any_network_can_be_the_start():
    """Training begins at the model and adds a function to it; the network itself stays as it is."""
    toy = Toy.drawn(2, (5, 9))
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(3, 1)).double()
    seen = Values(toy.points)
    method, kernel = theory.GradientSteps(0.8, 3), theory.RBF(0.7)
    train(made("points", method, kernel), toy.federation, model=network, rounds=4, runtime="inline", listeners=[seen])
    f_0 = network.eval()(torch.from_numpy(toy.points)).detach().numpy()
    np.testing.assert_allclose(seen.f, list(recursion(toy, kernel, method, f_0, seen.answered)), atol=1e-10)


# -- deliberate mistakes --------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def step_of_the_batch(patch: pytest.MonkeyPatch) -> None:
    """eta / B in place of eta / n_i."""
    step = least_squares._step
    patch.setattr(least_squares, "_step", lambda space, b, method, n, closed: step(space, b, method, 2, closed))


def prox_without_its_share(patch: pytest.MonkeyPatch) -> None:
    """(I + eta K_B) with K_B not divided by n_i."""
    for space in (least_squares.SampleSpace, least_squares.FeatureSpace):
        patch.setattr(space, "gram", lambda self, batch, gram=space.gram: 5 * gram(self, batch))


def frozen_values(patch: pytest.MonkeyPatch) -> None:
    """Coefficients grow, but later steps do not see it."""

    def points(self, batch, coefficients):
        self.coefficients[self.batches[batch]] += coefficients

    patch.setattr(least_squares.SampleSpace, "add", points)


def unweighted(patch: pytest.MonkeyPatch) -> None:
    from parley.algorithms.protocol import Cohort

    patch.setattr(Cohort, "shares", lambda self, answered: {i: 1 / len(answered) for i in answered})


def forgotten_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(on_points, "_start", lambda task: lambda x: torch.zeros(len(x), task.info.outputs))


def rows_swapped(patch: pytest.MonkeyPatch) -> None:
    """Points in another order than coefficients."""
    patch.setattr(on_points, "_stacked", lambda p, c: torch.cat([c[i] for i in reversed(list(p))]).numpy())


@pytest.mark.parametrize(("mistake", "form", "name", "batch"), [
    (step_of_the_batch, "points", "fedavg, s = 4", 2), (step_of_the_batch, "features", "fedprox", 2),
    (prox_without_its_share, "features", "fedprox", None), (prox_without_its_share, "points", "fedprox", None),
    (frozen_values, "points", "fedavg, s = 4", None), (frozen_values, "points", "fedprox", 2),
    (unweighted, "points", "fedprox", None), (unweighted, "features", "fedavg, s = 1", None),
    (forgotten_start, "points", "fedavg, s = 4", None), (rows_swapped, "points", "fedprox", None),
])  # fmt: skip
def test_mistakes_are_noticed(monkeypatch: pytest.MonkeyPatch, mistake: Patch, form: str, name: str, batch: int | None):
    toy = Toy.drawn(11, (4, 9, 6))
    method, kernel = METHODS[name], theory.FeatureKernel(toy.phi)

    def judge() -> None:
        if batch is None:
            check(toy, form, method, kernel, start=1.0)
            return
        phi = [toy.phi(x) for x in toy.x]
        once = theory.minibatch_round(phi, [y[:, 0] for y in toy.y], method, batch)
        run = toy.train(made(form, method, kernel, batch=batch), 4)
        found = run.predictor()(torch.from_numpy(toy.points)).detach().numpy()[:, 0]
        wanted = np.concatenate(phi) @ once.power(4)(np.zeros(phi[0].shape[1]))
        np.testing.assert_allclose(found, wanted, atol=1e-8)

    judge()
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        judge()

"""FFGB-Distill and FedAvg-Distill: closed forms for linear models, planted mistakes, every runtime, resuming."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import parley as pl
from parley.algorithms.boosting import distill, ffgb_distill
from parley.algorithms.boosting.distilling import Distilling
from parley.algorithms.boosting.weak import Network, RegressionTree
from parley.algorithms.exchange import exchange
from parley.models import mlp

D, CLIENTS = 3, 4
EXACT = {"epochs": 1, "batch": None, "lr": 1.0, "optimizer": "sgd", "clip": None}
STUDENT = {f"student_{name}": value for name, value in EXACT.items()}


@dataclass(frozen=True)
class Linear:
    """Clients with y = <c_i, x> at inputs with X'X/n = 1, so that one step of size 1 is least squares."""

    clients: int = CLIENTS
    shift: float = 0.0
    """Of the public inputs' span: 0 keeps them orthogonal."""

    @property
    def c(self) -> np.ndarray:
        return np.random.default_rng(5).normal(size=(self.clients, D))

    def federation(self) -> pl.Federation:
        random = np.random.default_rng(0)
        data = {}
        for i, c in enumerate(self.c):
            n = 6 + 2 * i
            x = np.linalg.qr(random.normal(size=(n, D)))[0] * np.sqrt(n)
            data[f"c{i}"] = (x, x @ c)
        public = np.linalg.qr(random.normal(size=(20, D)))[0] * np.sqrt(20)
        return pl.Federation.from_arrays(data, public=public)

    def weights(self) -> np.ndarray:
        sizes = np.array([6 + 2 * i for i in range(self.clients)])
        return sizes / sizes.sum()

    def run(self, algorithm: pl.Run, rounds: int = 1, **more) -> np.ndarray:
        torch.manual_seed(0)
        module = nn.Linear(D, 1, bias=False).double()
        with torch.no_grad():
            module.weight.fill_(0.5)
        run = pl.train(
            algorithm, self.federation(), model=module, rounds=rounds, loss="half-squares", runtime="inline", **more
        )
        return run.state["model"]["weight"].numpy()[0]


def ffgb(**settings) -> pl.FFGBDistill:
    return pl.FFGBDistill(**{"lr": 0.7, "mu": 0.3, "learner": Network(**EXACT), **STUDENT, **settings})


def boosted(problem: Linear, rounds: int, eta: float = 0.7, mu: float = 0.3) -> np.ndarray:
    """phi = <w - c_i, x> + mu <w, x> is linear, so h_i and the student are exact: w <- w - eta ((1 + mu) w - mean)."""
    w, mean = np.full(D, 0.5), problem.weights() @ problem.c
    for _ in range(rounds):
        w = w - eta * ((1 + mu) * w - mean)
    return w


@pytest.mark.parametrize("clients", [1, CLIENTS])
@pytest.mark.parametrize("rounds", [1, 4])
def test_boosting_linear_functions_is_gradient_descent_on_them(clients: int, rounds: int):
    problem = Linear(clients)
    np.testing.assert_allclose(problem.run(ffgb(), rounds), boosted(problem, rounds), atol=1e-12)


def test_it_settles_at_the_minimiser_of_the_regularised_risk():
    problem = Linear()
    best = problem.weights() @ problem.c / 1.3  # of sum_i p_i E<w - c_i, x>^2/2 + mu/2 ||w||^2
    np.testing.assert_allclose(problem.run(ffgb(), 40), best, atol=1e-12)


class NoRegulariser(pl.FFGBDistill):
    @exchange(like=pl.FFGBDistill.client)
    def client(self, *call):
        return pl.FFGBDistill.client(replace(self, mu=0.0), *call)


class NoWeights(pl.FFGBDistill):
    def aggregate(self, task, state, replies, number, key):
        replies.weights.update(dict.fromkeys(replies.weights, 1.0))
        return super().aggregate(task, state, replies, number, key)


class FreshStudent(pl.FFGBDistill):
    """Not started from the function before: caught only if the student is not trained to the end."""

    def distilled(self, task, state, teacher, key):
        return super().distilled(task, state.replace(model={n: v * 0 for n, v in state["model"].items()}), teacher, key)


@pytest.mark.parametrize("wrong", [NoRegulariser, NoWeights])
def test_planted_mistakes_are_noticed(wrong: type[pl.FFGBDistill]):
    method = ffgb()
    broken = wrong(**{name: getattr(method, name) for name in method.__dataclass_fields__})
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        np.testing.assert_allclose(Linear().run(broken), boosted(Linear(), 1), atol=1e-6)


def test_a_planted_sign_slip_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ffgb_distill, "functional_gradient", lambda task, f, y: -(f - y.reshape(f.shape)))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        np.testing.assert_allclose(Linear().run(ffgb()), boosted(Linear(), 1), atol=1e-6)


def test_the_student_starts_from_the_function_before():
    lazy = ffgb(student_lr=1e-9)
    np.testing.assert_allclose(Linear().run(lazy, 2), np.full(D, 0.5), atol=1e-6)
    fresh = FreshStudent(**{name: getattr(lazy, name) for name in lazy.__dataclass_fields__})
    assert np.abs(Linear().run(fresh)).max() < 1e-6


# --- FedAvg-Distill ---

AVERAGE = pl.FedAvg(lr=0.1, steps=3, batch=None)
TAUGHT = pl.FedAvgDistill(lr=0.1, steps=3, batch=None, **STUDENT)


@pytest.mark.parametrize("clients", [1, CLIENTS])
def test_for_linear_models_distillation_is_the_average(clients: int):
    problem = Linear(clients)
    np.testing.assert_allclose(problem.run(TAUGHT, 5), problem.run(AVERAGE, 5), atol=1e-12)


def test_with_one_client_the_student_is_its_model():
    """Whatever the network: the average is the teacher, so the student has nothing to learn."""
    federation = pictures(clients=1)
    runs = [
        pl.train(method, federation, model=mlp(6), rounds=3, runtime="inline")
        for method in (
            pl.FedAvg(lr=0.1, steps=3),
            pl.FedAvgDistill(lr=0.1, steps=3, student_epochs=2, student_optimizer="sgd"),
        )
    ]
    for name, value in runs[0].state["model"].items():
        torch.testing.assert_close(runs[1].state["model"][name], value, rtol=0, atol=1e-5)


def test_teachers_that_are_left_out_are_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "parley.algorithms.boosting.fedavg_distill.mean_outputs",
        lambda teachers, weights, x: distill.mean_outputs(list(teachers)[:1], list(weights)[:1], x),
    )
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        np.testing.assert_allclose(Linear().run(TAUGHT), Linear().run(AVERAGE), atol=1e-6)


def test_teachers_are_evaluated_once(monkeypatch: pytest.MonkeyPatch):
    seen, own = [], distill.outputs
    monkeypatch.setattr(distill, "outputs", lambda predict, x: (seen.append(len(x)), own(predict, x))[1])
    pl.train(
        pl.FedAvgDistill(steps=2, student_epochs=5), pictures(), model=mlp(4), rounds=2, runtime="inline", cohort=3
    )
    assert seen == [40] * 6


# --- both, on classes ---


def pictures(clients: int = 5, public: int = 40) -> pl.Federation:
    random = np.random.default_rng(1)
    x = random.normal(size=(200, 6)).astype(np.float32)
    y = (x @ random.normal(size=(6, 3))).argmax(1)
    data = {f"c{i}": (x[20 * i : 20 * i + 12 + i], y[20 * i : 20 * i + 12 + i]) for i in range(clients)}
    return pl.Federation.from_arrays(data, test=(x[150:], y[150:]), public=x[100 : 100 + public])


METHODS = {
    "ffgb-distill": pl.FFGBDistill(lr=2.0, learner=Network(epochs=5), student_epochs=5),
    "trees": pl.FFGBDistill(lr=2.0, learner=RegressionTree(depth=2), student_epochs=5),
    "fedavg-distill": pl.FedAvgDistill(lr=0.1, steps=3, student_epochs=5),
    "mse": pl.FedAvgDistill(lr=0.1, steps=3, student_epochs=5, student_loss="mse"),
}


def same(a: pl.Run, b: pl.Run) -> None:
    for name, value in a.state.tensors.items():
        assert torch.equal(value, b.state.tensors[name]), name
    assert a.series("accuracy")[1].tolist() == b.series("accuracy")[1].tolist()
    assert a.series("up/bytes")[1].tolist() == b.series("up/bytes")[1].tolist()


@pytest.mark.parametrize("name", METHODS)
def test_in_every_runtime_and_resumed(name: str, tmp_path: Path):
    settings = {"model": mlp(5), "rounds": 3, "cohort": 3, "workers": 1}
    whole = pl.train(METHODS[name], pictures(), runtime="inline", **settings)
    for runtime in ("pool", "wire"):
        same(pl.train(METHODS[name], pictures(), runtime=runtime, **settings), whole)
    pl.train(METHODS[name], pictures(), runtime="inline", store=tmp_path / "runs.db", **settings | {"rounds": 1})
    same(
        pl.train(METHODS[name], pictures(), runtime="inline", store=tmp_path / "runs.db", resume=True, **settings),
        whole,
    )


def test_stacked_or_refused():
    settings = {"model": mlp(5), "rounds": 2}
    inline, stacked = (
        pl.train(METHODS["fedavg-distill"], pictures(), runtime=runtime, **settings)
        for runtime in ("inline", "stacked")
    )
    for name, value in inline.state.tensors.items():
        torch.testing.assert_close(stacked.state.tensors[name], value, rtol=1e-4, atol=1e-4)
    with pytest.raises(pl.UnsupportedError, match="asks each client by itself"):
        pl.train(METHODS["ffgb-distill"], pictures(), runtime="stacked", **settings)


@pytest.mark.parametrize("name", METHODS)
def test_they_learn(name: str):
    method = replace(METHODS[name], student_epochs=40)
    if isinstance(method, pl.FFGBDistill) and isinstance(method.learner, Network):
        method = replace(method, learner=Network(epochs=40, lr=0.01))
    run = pl.train(method, pictures(), model=mlp(16), rounds=8, runtime="inline")
    assert run.last("accuracy") > run.series("accuracy")[1][0] + 0.15


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize("name", ["ffgb-distill", "fedavg-distill"])
def test_statistics_of_batch_normalisation(name: str):
    run = pl.train(METHODS[name], pictures(), model=Normed, rounds=2, runtime="inline")
    assert float(run.state["buffers"]["1.running_var"].min()) > 0
    assert int(run.state["buffers"]["1.num_batches_tracked"]) > 0
    with pytest.raises(pl.InputError, match='buffers = "average"'):
        pl.train(METHODS[name], pictures(), model=Normed, rounds=2, runtime="inline", buffers="local")


@pytest.mark.parametrize("name", ["ffgb-distill", "fedavg-distill"])
def test_what_is_refused(name: str):
    method: Distilling = METHODS[name]
    random = np.random.default_rng(0)
    data = {"a": (random.normal(size=(5, 6)).astype(np.float32), np.arange(5) % 3)}
    for public in (None, np.zeros((0, 6), np.float32)):
        federation = (
            pl.Federation.from_arrays(data, public=public)
            if public is None
            else pictures().with_public(torch.zeros(0, 6))
        )
        with pytest.raises(pl.InputError, match="public inputs, but there are none"):
            pl.train(method, federation, model=mlp(4), rounds=1)
    with pytest.raises(pl.InputError, match="public inputs have shape"):
        pictures().with_public(torch.zeros(4, 7))
    for settings, message in (
        ({"student_clip": 0.0}, "clip"),
        ({"student_epochs": 0}, "epochs"),
        ({"student_lr": -1.0}, "lr"),
    ):
        with pytest.raises(pl.InputError, match=message):
            replace(method, **settings)
    values = {"a": (random.normal(size=(5, 6)), random.normal(size=5))}
    numbers = pl.Federation.from_arrays(values, public=random.normal(size=(5, 6)))
    with pytest.raises(pl.InputError, match='student_loss = "mse"'):
        pl.train(replace(method, student_loss="kl"), numbers, model=mlp(4), rounds=1)


def test_settings_of_each():
    with pytest.raises(pl.InputError, match="lr must be above 0 and mu at least 0"):
        pl.FFGBDistill(lr=0.0)
    assert pl.FedAvgDistill(student_batch=0).student_batch is None


def test_another_data_set_as_public(tmp_path: Path):
    from parley.study.toml import study_from_dict

    table = {
        "rounds": 1,
        "data": {"name": "digits", "clients": 3, "public": "digits"},
        "model": {"name": "mlp", "hidden": [4]},
        "algorithm": {"name": "fedavg-distill", "steps": 1, "student_epochs": 1},
        "runtime": {"name": "inline"},
    }
    study = study_from_dict(table)
    assert study.federation().public.shape == (1438, 1, 8, 8)
    assert study_from_dict(study.resolved()).resolved() == study.resolved()
    with pytest.raises(pl.InputError, match=r"\[data\] the public inputs have shape \(4,\)"):
        study_from_dict({**table, "data": {**table["data"], "public": "iris"}}).federation()
    with pytest.raises(pl.InputError, match="both public and public_fraction"):
        study_from_dict({**table, "data": {**table["data"], "public_fraction": 0.1}})
    with pytest.raises(pl.InputError, match="nowhere"):
        study_from_dict({**table, "data": {**table["data"], "public": "nowhere"}}).federation()

"""One-shot ridge: the pooled solution over any partition, cohorts of any order, every runtime and bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge as Pooled
from torch import nn

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.kernel.ridge import Ridge
from parley.channels.quantise import qsgd
from parley.core.errors import InputError, UnsupportedError
from parley.data import Federation
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.models import features, linear, mlp
from parley.models.feature_model import RandomFourierFeatures
from parley.store.runs import RunStore
from parley.study.train import train
from parley.study.warm_start import WarmStart

QUIET = Evaluation(every=1000)


def samples(seed: int, count: int, columns: int = 4, outputs: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, columns)) + 3.0, rng.normal(size=(count, outputs)) - 1.0


def dealt(x: np.ndarray, y: np.ndarray, owners: np.ndarray) -> Federation:
    return Federation.from_arrays({f"c{o}": (x[owners == o], y[owners == o]) for o in np.unique(owners)})


def learned(run: Run) -> np.ndarray:
    """[outputs, d] with the bias last."""
    return np.column_stack([value.numpy() for value in run.state["model"].values()])


def pooled(x: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    fitted = Pooled(alpha=penalty, fit_intercept=True, solver="svd").fit(x, y)
    return np.column_stack([fitted.coef_, fitted.intercept_])


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 40),
    clients=st.integers(1, 8),
    penalty=st.floats(1e-2, 100.0),
    size=st.integers(1, 8),
)
def test_it_is_pooled_ridge_over_any_partition_and_in_any_cohorts(seed, count, clients, penalty, size):
    x, y = samples(seed, count)
    federation = dealt(x, y, np.random.default_rng(seed + 1).integers(0, clients, count))
    size = min(size, len(federation))
    rounds = 1 if size == len(federation) else 60
    run = train(
        Ridge(penalty), federation, model=linear(), rounds=rounds, cohort=size, evaluation=QUIET, runtime="inline"
    )
    assert run.records[-1].metrics["server/missing"].value == 0
    assert np.abs(learned(run) - pooled(x, y, penalty)).max() < 1e-10


@pytest.mark.parametrize("double", [True, False])
def test_on_the_penultimate_layer_of_a_network(double):
    x, y = samples(0, 60)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.BatchNorm1d(7), nn.Linear(7, 2))
    net[2].running_mean += 0.3
    net = net.double() if double else net
    x, y = (x, y) if double else (x.astype(np.float32), y.astype(np.float32))
    run = train(Ridge(0.3), dealt(x, y, np.arange(60) % 5), model=net, rounds=1, evaluation=QUIET, runtime="inline")
    with torch.no_grad():
        phi = net.double().eval()[:3](torch.from_numpy(x).double()).numpy()
    assert np.abs(learned(run) - pooled(phi, y, 0.3)).max() < (1e-10 if double else 1e-6)
    assert torch.equal(run.learned.weights(run.model())["0.weight"], run.task.initial()["0.weight"])


def test_on_a_feature_map_and_without_penalty():
    x, y = samples(1, 50, 2, 1)
    federation = dealt(x, y, np.arange(50) % 3)
    model = features(RandomFourierFeatures(8, lengthscale=2.0))
    for penalty in (0.7, 0.0):
        run = train(Ridge(penalty), federation, model=model, rounds=1, evaluation=QUIET, runtime="inline")
        phi = run.task.network.features(torch.from_numpy(x)).numpy()
        wanted = np.linalg.solve(phi.T @ phi + penalty * np.eye(8), phi.T @ y)
        assert np.abs(run.state["model"]["head.weight"].numpy().T - wanted).max() < 1e-10


def test_without_penalty_the_smallest_solution():
    x, y = samples(2, 3, 6)
    run = train(Ridge(0.0), dealt(x, y, np.arange(3)), model=linear(bias=False), rounds=1, runtime="inline")
    found = run.state["model"]["1.weight"].numpy()
    assert np.abs(found - (np.linalg.pinv(x) @ y).T).max() < 1e-10


@pytest.fixture
def digits() -> Federation:
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    clients = {str(i): (x[100 * i : 100 * i + 100], y[100 * i : 100 * i + 100]) for i in range(4)}
    return Federation.from_arrays(clients, test=(x[500:700], y[500:700]))


def test_classes_are_one_hot_targets_and_scale_multiplies(digits):
    x = torch.cat([digits.client(i).x for i in digits.ids]).flatten(1).double().numpy()
    y = torch.cat([digits.client(i).y for i in digits.ids]).numpy()
    wanted = pooled(x, np.eye(10)[y], 2.0)
    for scale in (1.0, 5.0):
        run = train(Ridge(2.0, scale), digits, model=linear(), rounds=1, runtime="inline")
        assert np.abs(learned(run) - scale * wanted).max() < 1e-6 * scale
    assert run.records[-1].metrics["central/accuracy"].value > 0.7


def test_absent_clients_are_reported_and_join_later():
    x, y = samples(3, 60)
    owners = np.arange(60) % 6
    federation = dealt(x, y, owners)
    faults = Faults(dropout=0.4, quorum=0.0)
    run = train(Ridge(1.0), federation, model=linear(), rounds=1, faults=faults, evaluation=QUIET, runtime="inline")
    absent = {failure.client for failure in run.records[-1].failures}
    assert absent
    assert run.records[-1].metrics["server/missing"].value == len(absent)
    there = ~np.isin([f"c{o}" for o in owners], list(absent))
    assert np.abs(learned(run) - pooled(x[there], y[there], 1.0)).max() < 1e-10
    later = train(Ridge(1.0), federation, model=linear(), rounds=12, faults=faults, evaluation=QUIET, runtime="inline")
    assert later.records[-1].metrics["server/missing"].value == 0
    assert np.abs(learned(later) - pooled(x, y, 1.0)).max() < 1e-10
    asked = [client for record in later.records for client in record.metrics.get("up/bytes").clients]
    assert sorted(asked) == sorted(federation.ids)  # nobody adds twice


def test_a_client_that_draws_itself_twice_adds_once():
    x, y = samples(4, 40)
    federation = dealt(x, y, np.arange(40) % 4)
    cohort = Sampling(4, scheme="with-replacement")
    run = train(Ridge(1.0), federation, model=linear(), rounds=15, cohort=cohort, evaluation=QUIET, runtime="inline")
    assert run.records[-1].metrics["server/missing"].value == 0
    assert np.abs(learned(run) - pooled(x, y, 1.0)).max() < 1e-10


def test_what_travels_is_the_upper_triangle_and_the_cross_sums():
    x, y = samples(5, 30)
    run = train(Ridge(), dealt(x, y, np.arange(30) % 3), model=linear(), rounds=1, evaluation=QUIET, runtime="inline")
    sent = run.records[-1].metrics["up/bytes"].value / 3
    assert 8 * (15 + 10) <= sent < 8 * (15 + 10) + 400


def test_resumed_and_pooled_workers_give_the_same(tmp_path):
    x, y = samples(6, 60)
    federation = dealt(x, y, np.arange(60) % 6)
    settings = {"model": mlp(5), "cohort": 2, "evaluation": QUIET}
    whole = train(Ridge(), federation, rounds=6, runtime="inline", **settings)
    with RunStore(tmp_path / "runs.db") as store:
        first = train(Ridge(), federation, rounds=2, runtime="inline", store=store, **settings)
        again = train(
            Ridge(), federation, rounds=6, runtime="pool", workers=2, store=store, resume=first.id, **settings
        )
    assert whole.state.scalars == again.state.scalars
    for name, value in whole.state.tensors.items():
        assert torch.equal(value, again.state.tensors[name])


def test_fine_tuning_begins_with_the_solution(digits):
    """Of a linear model and of a network's head; what the round of sums cost is counted in round 0."""
    for model in (linear(), mlp(30)):
        alone = train(Ridge(1.0, scale=8.0), digits, model=model, rounds=1, runtime="inline")
        first = WarmStart(algorithm=Ridge(1.0, scale=8.0))
        tuned = train(FedAvg(lr=0.05, steps=5), digits, model=model, rounds=3, init_from=first, runtime="inline")
        begin, end = tuned.records[0].metrics, tuned.records[-1].metrics
        assert begin["central/loss"].value == alone.records[-1].metrics["central/loss"].value
        assert begin["up/bytes"].value == alone.records[-1].metrics["up/bytes"].value
        assert end["central/loss"].value < begin["central/loss"].value
        again = train(FedAvg(lr=0.05, steps=5), digits, model=model, rounds=1, init_from=alone, runtime="inline")
        assert again.records[0].metrics["central/loss"].value == begin["central/loss"].value


class Curved(nn.Module):
    """Ends in a non-linearity."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(x).tanh()


def test_bad_input():
    x, y = samples(7, 20)
    federation = dealt(x.astype(np.float32), y.astype(np.float32), np.arange(20) % 2)
    for bad, says in ((-1.0, "penalty must be at least 0"), (float("nan"), "a finite number")):
        with pytest.raises(InputError, match=says):
            Ridge(bad)
    with pytest.raises(InputError, match="not those of one dense layer at its end"):
        train(Ridge(), federation, model=Curved(), rounds=1)
    with pytest.raises(InputError, match="no dense layer at its end"):
        train(Ridge(), federation, model=nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 4), nn.Flatten()))
    with pytest.raises(InputError, match="cannot be run with the channel qsgd"):
        train(Ridge(), federation, model=linear(), rounds=1, channels=qsgd(4))
    with pytest.raises(UnsupportedError, match="stacked"):
        train(Ridge(), federation, model=linear(), rounds=1, runtime="stacked")


def test_a_client_that_adds_its_sums_again_would_be_noticed(monkeypatch):
    """The planted mistake: the server forgets who has joined."""
    honest = Ridge.round

    def forgetful(self, task, state, cohort, number, key):
        return (yield from honest(self, task, state.replace(joined="[]"), cohort, number, key))

    monkeypatch.setattr(Ridge, "round", forgetful)
    x, y = samples(8, 30)
    run = train(Ridge(), dealt(x, y, np.arange(30) % 3), model=linear(), rounds=2, evaluation=QUIET, runtime="inline")
    assert np.abs(learned(run) - pooled(x, y, 1.0)).max() > 1e-4

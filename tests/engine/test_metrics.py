"""Metrics in runs: of all outputs of one owner at once, in every runtime; best, target and headline by any of them."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from parley.algorithms.averaging.baselines import LocalOnly
from parley.algorithms.averaging.local_update import FedAvg
from parley.core.errors import InputError
from parley.data import Federation
from parley.engine.settings import Evaluation
from parley.models import linear, mlp
from parley.study.stored import load_run
from parley.study.toml import load_study
from parley.study.train import train


def rare(central: bool = True) -> Federation:
    """Three clients with a rare class 1, a fourth that has only class 0."""
    random = np.random.default_rng(1)
    x = random.normal(size=(400, 5)).astype(np.float32)
    y = (x[:, 0] + 0.7 * random.normal(size=400) > 1.2).astype(int)
    none = x[:60][y[:60] == 0]
    clients = {name: (x[a:b], y[a:b]) for name, a, b in (("a", 0, 80), ("b", 80, 160), ("c", 160, 240))}
    clients["d"] = (none, np.zeros(len(none), int))
    return Federation.from_arrays(clients, test=(x[240:], y[240:]) if central else None, test_fraction=0.5, seed=0)


def test_central_and_client_auc_by_hand():
    federation = rare()
    evaluation = Evaluation(clients="all", metrics=("auc", "balanced-accuracy"), batch=7)
    run = train(FedAvg(lr=0.5), federation, model=linear(), rounds=2, evaluation=evaluation)
    last = run.records[-1].metrics
    outputs = run.predict(federation.test.x)
    assert last["central/auc"].value == pytest.approx(roc_auc_score(federation.test.y, outputs[:, 1] - outputs[:, 0]))
    assert last["central/balanced-accuracy"].value == pytest.approx(
        balanced_accuracy_score(federation.test.y, outputs.argmax(1))
    )
    own = {}
    for client in "abc":
        data = federation.client_test(client)
        outputs = run.predict(data.x)
        own[client] = roc_auc_score(data.y, outputs[:, 1] - outputs[:, 0])
    found = last["clients/auc"]
    assert {i: v for i, v in found.clients.items() if i != "d"} == pytest.approx(own)
    assert math.isnan(found.clients["d"])  # one class only
    assert found.value == pytest.approx(np.mean(list(own.values())))
    assert last["clients/auc/clients"].value == 3
    assert "clients/balanced-accuracy/clients" not in last
    assert run.best("auc") == run.series("auc")[1].max()


@pytest.mark.parametrize("runtime", ["stacked", "pool"])
def test_the_same_in_every_runtime(runtime: str):
    evaluation = Evaluation(clients="all", metrics=("auc", "log-loss", positives), batch=30)
    runs = [
        train(FedAvg(lr=0.5), rare(), model=linear(), rounds=1, evaluation=evaluation, runtime=name, workers=2)
        for name in ("inline", runtime)
    ]
    for name in ("central/auc", "clients/auc", "central/log-loss", "clients/positives"):
        a, b = (run.records[-1].metrics[name] for run in runs)
        assert a.value == pytest.approx(b.value, rel=1e-5)
        assert a.clients == pytest.approx(b.clients, rel=1e-5, nan_ok=True)


def positives(outputs, targets):
    return (outputs.argmax(1) == 1).float().mean()


def test_personal_models_on_the_central_test_set():
    federation = rare()
    evaluation = Evaluation(clients="all", metrics=("auc",), batch=11)
    run = train(LocalOnly(lr=0.5), federation, model=linear(), rounds=2, evaluation=evaluation)
    found = run.records[-1].metrics["central/auc"]
    for client, value in found.clients.items():
        with torch.no_grad():
            outputs = run.predict(federation.test.x, client=client)
        assert value == pytest.approx(roc_auc_score(federation.test.y, outputs[:, 1] - outputs[:, 0]))
    assert found.value == pytest.approx(np.mean(list(found.clients.values())))


def test_best_and_target_of_personal_methods_are_the_clients():
    """Trained past a target that the clients' own models had reached long ago."""
    evaluation = Evaluation(clients="all", target=0.8)
    run = train(LocalOnly(lr=0.5), rare(), model=linear(), rounds=50, evaluation=evaluation)
    values = run.series("clients/accuracy")[1]
    assert run.headline.name == "clients/accuracy"
    assert values[-1] >= 0.8
    assert (values[:-1] < 0.8).all()
    assert run.records[-1].number < 50


def test_held_out_clients_are_evaluated_where_there_is_no_central_test_set():
    run = train(FedAvg(lr=0.5), rare(central=False), model=linear(), rounds=2)
    assert run.best() == max(record.metrics["clients/accuracy"].value for record in run.records)
    assert run.best_state is not None


def test_the_headline_chooses_best_and_target():
    evaluation = Evaluation(clients="all", metrics=("auc", "log-loss"), headline="clients/auc")
    run = train(FedAvg(lr=0.5), rare(), model=linear(), rounds=4, evaluation=evaluation)
    assert run.best_value == run.best("clients/auc") == run.series("clients/auc")[1].max()
    smaller = train(
        FedAvg(lr=0.5),
        rare(),
        model=linear(),
        rounds=4,
        evaluation=Evaluation(metrics=("log-loss",), metric="log-loss", target=0.4),
    )
    values = smaller.series("central/log-loss")[1]
    assert smaller.best_value == values.min()
    assert (values[:-1] > 0.4).all()
    assert next(name for name in run.summary() if "/" in name) == "clients/auc"
    loss = train(FedAvg(), rare(), model=linear(), rounds=3, evaluation=Evaluation(headline="train/loss"))
    assert loss.best_value == loss.series("train/loss")[1].min()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"metrics": ("acu",)}, "unknown metric 'acu': did you mean 'auc'?"),
        ({"metrics": ("r2",)}, "the metric 'r2' judges numbers, but the task is to tell classes apart; choose one of"),
        ({"metric": "auc"}, "evaluate.metric names 'auc', which is not measured: add it to evaluate.metrics, ['auc']."),
        ({"headline": "central/f1"}, "evaluate.headline names 'f1', which is not measured"),
        ({"headline": "clients/accuracy"}, "evaluate.headline is 'clients/accuracy', but nothing is evaluated there"),
        (
            {"headline": "accuracy"},
            "evaluate.headline is 'accuracy'; say of which samples: clients/accuracy or central",
        ),
        ({"headline": "sever/x"}, "evaluate.headline is 'sever/x', but no such metric was recorded"),
        ({"metrics": (3,)}, "3 is no metric: it must be a name, or a function of outputs and targets."),
    ],
)
def test_mistakes_are_one_sentence(settings, sentence: str):
    with pytest.raises(InputError) as caught:
        train(FedAvg(), rare(), model=linear(), rounds=2, evaluation=Evaluation(**settings))
    assert sentence in str(caught.value)


def raises_for_one_class(outputs, targets):
    return roc_auc_score(targets.numpy(), outputs[:, 1].numpy()) if len(set(targets.tolist())) > 1 else 1 / 0


def test_a_function_that_raises_is_the_clients_failure():
    evaluation = Evaluation(clients="all", metrics=(raises_for_one_class,))
    run = train(FedAvg(), rare(), model=linear(), rounds=1, evaluation=evaluation)
    record = run.records[-1]
    assert set(record.metrics["clients/loss"].clients) == set("abc")
    (failure,) = record.failures
    assert failure.client == "d"
    assert "the metric 'raises_for_one_class' raised ZeroDivisionError" in failure.reason

    def broken(outputs, targets):
        return [1, 2]

    with pytest.raises(InputError, match="the metric 'broken' raised TypeError"):
        train(FedAvg(), rare(), model=linear(), rounds=1, evaluation=Evaluation(metrics=(broken,)))


def test_regression():
    random = np.random.default_rng(0)
    x, w = random.normal(size=(90, 3)), random.normal(size=(3, 1))
    clients = {i: (x[a : a + 30], x[a : a + 30] @ w) for i, a in (("a", 0), ("b", 30))}
    federation = Federation.from_arrays(clients, test=(x[60:], x[60:] @ w))
    run = train(
        FedAvg(lr=0.1),
        federation,
        model=linear(),
        rounds=20,
        evaluation=Evaluation(metrics=("r2", "rmse", "mae"), metric="r2", target=0.99),
    )
    assert run.last("r2") >= 0.99
    assert run.last("rmse") == pytest.approx(math.sqrt(run.last("loss")))
    assert run.best("rmse") == run.series("rmse")[1].min()


STUDY = """
rounds = 2
[data]
name = "digits"
clients = 4
[model]
name = "linear"
[algorithm]
name = "fedavg"
[evaluate]
metrics = ["auc", "own.py:top_two"]
headline = "central/auc"
"""
OWN = """
def top_two(outputs, targets):
    return (outputs.topk(2, 1).indices == targets[:, None]).any(1).float().mean()
"""


def test_a_study_names_metrics_and_functions_of_its_own(tmp_path: Path):
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "own.py").write_text(OWN)
    study = load_study(tmp_path / "study.toml")
    run = train(study, store=tmp_path / "runs.db")
    assert run.last("central/top_two") > run.last("central/accuracy")
    assert run.best_value == run.best("central/auc")
    loaded = load_run(tmp_path / "runs.db", "last")
    assert loaded.best("auc") == run.best("auc")
    assert loaded.summary() == run.summary()


def test_no_outputs_are_kept_unless_asked_for(monkeypatch):
    """Plain accuracy and loss cost what they did."""
    kept = []
    cat = torch.cat
    monkeypatch.setattr("parley.runtimes.execute.torch.cat", lambda parts: kept.append(len(parts)) or cat(parts))
    train(FedAvg(), rare(), model=mlp(3), rounds=1, evaluation=Evaluation(clients="all"), runtime="inline")
    assert not kept

"""What the numbers of a run mean, computed again by hand."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from parley.algorithms.averaging.baselines import LocalOnly
from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import Algorithm, Learned, OneExchange
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Message, State
from parley.core.wire import wire_size
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.listeners import Listener
from parley.engine.settings import Evaluation, Sampling
from parley.models import linear, mlp
from parley.runtimes import Job, execute
from parley.runtimes.protocol import EvaluationCall
from parley.study.train import make_task, train
from parley.training.losses import IGNORE, cross_entropy
from parley.training.task import Task


def classes(test_fraction: float = 0.25, central: bool = True) -> Federation:
    random = np.random.default_rng(0)
    x = random.normal(size=(160, 4)).astype(np.float32)
    y = (x @ random.normal(size=(4, 3))).argmax(1)
    clients = {name: (x[a:b], y[a:b]) for name, a, b in (("a", 0, 40), ("b", 40, 60), ("c", 60, 110))}
    return Federation.from_arrays(
        clients, test=(x[110:], y[110:]) if central else None, test_fraction=test_fraction, seed=3
    )


class States(Listener):
    def start(self, run, rounds: int) -> None:
        self.run, self.kept = run, {}

    def round(self, record) -> None:
        self.kept[record.number] = self.run.state


def test_central_and_client_metrics_by_hand():
    federation, states = classes(), States()
    run = train(
        FedAvg(), federation, model=mlp(5), rounds=3, listeners=[states], evaluation=Evaluation(clients="all", batch=7)
    )
    assert [record.number for record in run.records] == [0, 1, 2, 3]
    for record in run.records:
        message = run.learned.message(states.kept[record.number])
        model = partial(run.learned.outputs, message, None)
        with torch.no_grad():
            outputs = model(federation.test.x)
            loss = F.cross_entropy(outputs, federation.test.y).item()
            right = (outputs.argmax(1) == federation.test.y).float().mean().item()
            own = {}
            for client in federation.ids:
                data = federation.client_test(client)
                own[client] = (model(data.x).argmax(1) == data.y).float().mean().item()
        assert record.metrics["central/loss"].value == pytest.approx(loss, rel=1e-5)
        assert record.metrics["central/accuracy"].value == pytest.approx(right, rel=1e-6)
        assert record.metrics["clients/accuracy"].clients == pytest.approx(own, rel=1e-6)
        assert record.metrics["clients/accuracy"].value == pytest.approx(sum(own.values()) / 3, rel=1e-6)
    best = max(run.records, key=lambda record: record.metrics["central/accuracy"].value)
    assert run.best_value == best.metrics["central/accuracy"].value == run.best("accuracy")
    assert run.best_round == best.number  # the first of equals
    assert run.best_state is states.kept[best.number]
    assert run.last("accuracy") == run.records[-1].metrics["central/accuracy"].value
    assert run.clients() == run.records[-1].metrics["clients/accuracy"].clients


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_chunks_do_not_change_the_numbers(batch: int):
    runs = [train(FedAvg(), classes(), model=mlp(5), rounds=1, evaluation=Evaluation(batch=b)) for b in (batch, 50)]
    assert runs[0].last("accuracy") == runs[1].last("accuracy")
    assert runs[0].last("loss") == pytest.approx(runs[1].last("loss"), rel=1e-6)


def test_every_so_many_rounds_and_after_the_last():
    run = train(FedAvg(), classes(), model=linear(), rounds=7, evaluation=Evaluation(every=3))
    assert run.series("accuracy")[0].tolist() == [0, 3, 6, 7]
    assert run.series("up/bytes")[0].tolist() == list(range(1, 8))


def test_a_run_stops_at_its_target():
    run = train(FedAvg(lr=0.5, batch=8), classes(), model=linear(), rounds=200, evaluation=Evaluation(target=0.8))
    values = run.series("accuracy")[1]
    assert values[-1] >= 0.8
    assert (values[:-1] < 0.8).all()
    assert len(values) < 200
    losses = train(
        FedAvg(lr=0.5, batch=8), classes(), model=linear(), rounds=200, evaluation=Evaluation(metric="loss", target=0.5)
    ).series("loss")[1]
    assert losses[-1] <= 0.5
    with pytest.raises(InputError, match=r"evaluate\.target is 80, but accuracy lies between 0 and 1"):
        train(FedAvg(), classes(), model=linear(), rounds=2, evaluation=Evaluation(target=80))
    assert (losses[:-1] > 0.5).all()
    started = train(FedAvg(), classes(), model=linear(), rounds=9, evaluation=Evaluation(target=0.0))
    assert len(started.records) == 1  # reached before the first round


def test_methods_with_a_model_per_client():
    """Round 0: all have the same model. Afterwards only those that took part have changed."""
    federation = classes()
    evaluation = Evaluation(clients="all")
    run = train(LocalOnly(lr=0.5), federation, model=linear(), rounds=1, cohort=1, evaluation=evaluation, seed=2)
    first, last = (record.metrics for record in run.records)
    (trained,) = last["up/bytes"].clients
    for metric in ("central/loss", "clients/loss"):
        moved = {c for c in federation.ids if first[metric].clients[c] != last[metric].clients[c]}
        assert moved == {trained}
        assert last[metric].value == pytest.approx(np.mean(list(last[metric].clients.values())))
    assert len(set(first["central/loss"].clients.values())) == 1
    assert run.total("up/bytes") == wire_size(Message())
    with pytest.raises(InputError, match="keeps a model per client"):
        run.module()
    few = train(LocalOnly(), federation, model=linear(), rounds=1, evaluation=Evaluation(clients=2))
    assert len(few.records[-1].metrics["central/loss"].clients) == 2


def test_regression_has_losses_only():
    random = np.random.default_rng(0)
    clients = {i: (random.normal(size=(20, 3)), random.normal(size=(20, 2))) for i in "ab"}
    federation = Federation.from_arrays(clients, test=(random.normal(size=(9, 3)), random.normal(size=(9, 2))))
    run = train(FedAvg(), federation, model=linear(), rounds=2, evaluation=Evaluation(metric="loss"))
    assert "central/accuracy" not in run.metrics()
    with torch.no_grad():
        wanted = F.mse_loss(run.predict(federation.test.x), federation.test.y).item()
    assert run.last("loss") == pytest.approx(wanted, rel=1e-5)
    assert run.best_value == run.best("loss") == run.series("loss")[1].min()


def test_without_test_data_nothing_is_evaluated():
    run = train(FedAvg(), classes(test_fraction=0.0, central=False), model=linear(), rounds=2)
    assert [record.number for record in run.records] == [1, 2]
    assert run.best_state is None
    with pytest.raises(InputError, match="no best model"):
        run.module(best=True)
    with pytest.raises(InputError, match="no metric 'accuracy'"):
        run.last("accuracy")


def test_a_fixed_set_of_clients_is_evaluated():
    runs = [
        train(FedAvg(), classes(), model=linear(), rounds=2, evaluation=Evaluation(clients=2, central=False), seed=s)
        for s in (0, 0, 1, 2, 3, 4)
    ]
    chosen = [[tuple(r.metrics["clients/loss"].clients) for r in run.records] for run in runs]
    assert all(len(set(own)) == 1 and len(own[0]) == 2 for own in chosen)
    assert chosen[0] == chosen[1]
    assert len({own[0] for own in chosen}) > 1


def test_bytes_are_those_of_the_wire():
    federation = classes()
    run = train(FedAvg(), federation, model=mlp(5), rounds=2, cohort=Sampling(2))
    task = make_task(federation, mlp(5), 0)
    message = run.algorithm.broadcast(task, run.algorithm.init(task, Key(0)), 1)
    update = Message.of(update=task.initial())
    for record in run.records[1:]:
        assert set(record.metrics["down/bytes"].clients.values()) == {wire_size(message)}
        assert set(record.metrics["up/bytes"].clients.values()) == {wire_size(update)}
        assert record.metrics["up/bytes"].value == 2 * wire_size(update)
    assert run.total("down/bytes") == 4 * wire_size(message)


def test_the_trained_module_can_be_taken_out():
    federation = classes()
    run = train(FedAvg(), federation, model=mlp(5), rounds=3)
    for best in (False, True):
        with torch.no_grad():
            assert torch.equal(
                run.module(best=best)(federation.test.x), run.predict(federation.test.x.numpy(), best=best)
            )
    assert run.summary()["rounds"] == 3
    with pytest.raises(InputError, match="did you mean 'central/accuracy'"):
        run.series("central/acuracy")


class Filled(OneExchange):
    """Its model's weights are what the test says from the first round on."""

    def __init__(self, value: float) -> None:
        self.value = value

    def init(self, task, key):
        return State.of(model=task.initial())

    @exchange()
    def client(self, task, message, memory, data, context):
        return Reply(Message())

    def learned(self, task):
        return Told(task, answer=lambda x: torch.full((len(x), 2), self.value))


@dataclass(frozen=True)
class Told(Learned):
    answer: Callable[[torch.Tensor], torch.Tensor] = field(kw_only=True)

    def outputs(self, message, memory, x, before=None):
        return self.answer(x)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_outputs_that_are_not_finite_are_wrong(value: float):
    """The largest of them would be class 0, and right where the targets are."""
    random = np.random.default_rng(0)
    x = random.normal(size=(20, 4)).astype(np.float32)
    zeros = np.zeros(20, dtype=int)
    federation = Federation.from_arrays({"a": (x, zeros), "b": (x, zeros + 1)}, test=(x, zeros), test_fraction=0.5)
    run = train(Filled(value), federation, model=linear(), rounds=1, evaluation=Evaluation(clients="all"))
    assert run.last("central/accuracy") == run.last("clients/accuracy") == 0
    assert math.isnan(run.last("central/loss"))
    assert run.best_value == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_sequences_with_positions_that_are_not_finite(bad: float):
    """[n, C, T]: only the positions with finite outputs can be right."""
    outputs = torch.zeros(3, 4, 5)
    outputs[:, 0] = 1.0
    outputs[1, 2, 3] = bad
    y = torch.zeros(3, 5, dtype=torch.int64)
    y[0, 0] = IGNORE
    data = ClientData(torch.zeros(3, 5, dtype=torch.int64), y)
    info = DataInfo("toy", (5,), 4, "classification")
    job = Job(
        Silent(outputs), Task(None, cross_entropy, info, 1), Federation(info, ("a",), InMemory((data,)), test=data)
    )
    score = execute.score(job, EvaluationCall(Message(), None, None))
    assert (score.correct, score.positions, score.samples) == (13, 14, 3)


class Silent(Algorithm):
    def __init__(self, outputs: torch.Tensor) -> None:
        self.told = outputs

    def learned(self, task):
        return Told(task, answer=lambda x: self.told)

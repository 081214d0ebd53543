"""What clients keep to themselves, read from a run: while it trains, afterwards, from a store and after a resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from parley.algorithms.averaging.baselines import LocalOnly
from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.parts.fedals import FedALS
from parley.algorithms.protocol import Learned, OneExchange
from parley.core.errors import InputError
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.data import Federation
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Evaluation
from parley.models import mlp
from parley.store.runs import RunStore
from parley.study.predict import predict_file
from parley.study.stored import load_run
from parley.study.toml import study_from_dict
from parley.study.train import train


def federation(clients: int = 5) -> Federation:
    random = np.random.default_rng(0)
    x = random.normal(size=(20 * clients, 7)).astype(np.float32)
    y = (x @ random.normal(size=(7, 3))).argmax(1)
    return Federation.from_arrays(
        {f"client-{i}": (x[20 * i : 20 * i + 20], y[20 * i : 20 * i + 20]) for i in range(clients)}, test=(x[:9], y[:9])
    )


def same(a: Tree, b: Tree) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert torch.equal(value, b[name]), name


def everything(run: Run) -> dict[str, Tree]:
    return {client: run.memory(client).tensors for client in run.clients_with_memory()}


def test_models_of_clients_that_train_alone():
    run = train(LocalOnly(batch=5), federation(), model=mlp(6), rounds=3, cohort=1)
    with_memory = list(run.clients_with_memory())
    seen = {client for record in run.records[1:] for client in record.metrics["up/bytes"].clients}
    assert with_memory == [client for client in run.federation.ids if client in seen]
    for client in with_memory:
        module = run.personal(client)
        assert not module.training
        same(dict(module.named_parameters()), run.memory(client)["model"])
        x = run.federation.test.x
        with torch.no_grad():
            assert torch.equal(run.predict(x, client=client), module(x))
            assert torch.equal(run.predict(x, client=client), run.predictor(client=client)(x))
    absent = next(client for client in run.federation.ids if client not in seen)
    assert run.memory(absent).tensors == {}
    with pytest.raises(InputError, match=f"client '{absent}' has no model of its own"):
        run.personal(absent)


def test_a_representation_that_is_never_averaged_is_each_client_s_own():
    """One source: what evaluation judges, what prediction uses and what can be taken out are the same model."""
    method = FedALS(batch=5, steps=2, alpha="never")
    run = train(method, federation(), model=mlp(6), rounds=2, evaluation=Evaluation(clients="none"))
    modules = [dict(run.personal(client).named_parameters()) for client in run.federation.ids]
    head = {name: value for name, value in run.state["model"].items() if name.startswith("3.")}
    assert len(head) == 2
    for client, own in zip(run.federation.ids, modules, strict=True):
        same({name: own[name] for name in head}, head)
        same({name: own[name] for name in own if name not in head}, run.memory(client)["model"])
    assert not torch.equal(modules[0]["1.weight"], modules[1]["1.weight"])
    test = run.federation.test
    recorded = run.records[-1].metrics["central/accuracy"].clients
    for client in run.federation.ids:
        right = (run.predict(test.x, client=client).argmax(1) == test.y).double().mean()
        assert recorded[client] == pytest.approx(float(right))


def test_between_averages_the_model_of_a_client_is_the_reported_one():
    run = train(FedALS(batch=5, steps=2, alpha=3), federation(), model=mlp(6), rounds=4, cohort=3)
    for client in run.federation.ids:
        same(dict(run.personal(client).state_dict()), dict(run.module().state_dict()))


def test_own_statistics_and_shared_weights():
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(7, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    run = train(FedAvg(batch=5), federation(), model=net, rounds=2, cohort=3, buffers="local")
    x = run.federation.test.x
    for client in run.clients_with_memory():
        model, own = run.personal(client), run.memory(client)["buffers"]
        assert all(torch.equal(model.state_dict()[name], value) for name, value in own.items())
        same(dict(model.named_parameters()), run.state["model"])
        with torch.no_grad():
            assert torch.equal(model(x), run.predictor(client=client)(x))


def test_a_method_without_clients_models_gives_the_servers():
    run = train(Scaffold(batch=5), federation(), model=mlp(6), rounds=2)
    assert set(everything(run)) == set(run.federation.ids)
    same(dict(run.personal("client-3").state_dict()), dict(run.module().state_dict()))


class Untrained(Learned):
    def outputs(self, message, memory, x, before=None):
        return self.task.predictor(self.task.initial())(x)


class Nothing(OneExchange):
    def init(self, task, key):
        return State()

    @exchange()
    def client(self, task, message, memory, data, context):
        return Reply(Message())

    def learned(self, task):
        return Untrained(task)


def test_mistakes():
    run = train(LocalOnly(batch=5), federation(), model=mlp(6), rounds=1)
    with pytest.raises(InputError, match="there is no client 'client-9'"):
        run.memory("client-9")
    with pytest.raises(InputError, match=r"there is no client 'clint-1'.*did you mean 'client-1'"):
        run.personal("clint-1")
    with pytest.raises(InputError, match="last round only"):
        run.predict(run.federation.test.x, client="client-1", best=True)
    with pytest.raises(InputError, match="name a client"):
        run.module()
    bare = train(Nothing(), federation(), model=mlp(6), rounds=1)
    assert list(bare.clients_with_memory()) == []
    with pytest.raises(InputError, match="Nothing has no models of clients"):
        bare.personal("client-1")


def test_listeners_see_memories_while_the_run_goes_on():
    class Look(Listener):
        def start(self, run: Run, rounds: int) -> None:
            self.run, self.kept = run, []

        def round(self, record) -> None:
            self.kept.append(everything(self.run))

    look = Look()
    run = train(LocalOnly(batch=5), federation(), model=mlp(6), rounds=3, cohort=2, listeners=[look])
    assert [len(kept) for kept in look.kept][:2] == [0, 2]
    for client, kept in everything(run).items():
        same(look.kept[-1][client], kept)


@pytest.mark.parametrize("budget", [0, 2**28])
def test_in_ram_on_disk_and_after_a_resume_they_are_the_same(tmp_path: Path, monkeypatch, budget: int):
    monkeypatch.setattr("parley.store.memories.BUDGET", budget)
    say = {"model": mlp(6), "cohort": 3, "runtime": "inline"}
    plain = train(FedALS(batch=5, steps=2), federation(), rounds=5, **say)
    store = tmp_path / "runs.db"
    short = train(FedALS(batch=5, steps=2), federation(), rounds=3, store=store, **say)
    before = everything(short)
    longer = train(FedALS(batch=5, steps=2), federation(), rounds=5, store=store, resume=short.id, **say)
    for client, kept in everything(plain).items():
        same(longer.memory(client).tensors, kept)
        same(dict(longer.personal(client).state_dict()), dict(plain.personal(client).state_dict()))
    assert list(longer.clients_with_memory()) == list(plain.clients_with_memory())
    assert everything(short).keys() == before.keys()  # the checkpoint before the last stays readable
    train(FedALS(batch=5, steps=2), federation(), rounds=7, store=store, resume=short.id, **say)
    with pytest.raises(InputError, match="the run has gone on"):
        short.memory(next(iter(before)))


def test_a_loaded_run_has_the_memories_of_its_checkpoint(tmp_path: Path):
    table = {"rounds": 3, "data": {"name": "iris", "clients": 4}, "model": {"name": "mlp", "hidden": [5]}}
    study = study_from_dict(table | {"algorithm": {"name": "local-only"}, "cohort": {"size": 2}})
    with RunStore(tmp_path / "runs.db") as store:
        trained = train(study, store=store)
        loaded = load_run(store, "last")
    assert everything(loaded).keys() == everything(trained).keys() != set()
    x = trained.federation.test.x
    np.savez(tmp_path / "x.npz", x=x.numpy())
    for client in trained.federation.ids:
        same(loaded.memory(client).tensors, trained.memory(client).tensors)
    for client in everything(trained):
        assert torch.equal(loaded.predict(x, client=client), trained.predict(x, client=client))
        assert predict_file(loaded, tmp_path / "x.npz", tmp_path / f"{client}.csv", client=client) == len(x)
    assert len({(tmp_path / f"{client}.csv").read_text() for client in everything(trained)}) > 1


def test_a_run_made_by_hand_has_no_memories():
    run = train(FedAvg(), federation(), model=mlp(6), rounds=1)
    again = Run(run.algorithm, run.task, run.federation, run.state)
    assert isinstance(again.memory("client-1"), Memory)
    assert list(again.clients_with_memory()) == []

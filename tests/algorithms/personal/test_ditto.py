"""Ditto: the global model is FedAvg's, the personal ones settle where they should, and mistakes are noticed."""

from dataclasses import replace
from functools import wraps

import pytest
import torch

from parley.algorithms.averaging.baselines import LocalOnly
from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.personal import ditto as module
from parley.algorithms.personal.ditto import Ditto
from parley.conformance import cases
from parley.core.errors import InputError
from parley.study.train import train

PLAIN = Ditto(lr=0.1, steps=2, batch=4)


def test_everywhere(works_everywhere):
    run = works_everywhere(replace(PLAIN, options={"momentum": 0.5}, keep=True, personal_steps=3))
    assert {"optimizer", "optimizer.personal", "personal"} <= set(run.memory("c1").groups())


def test_the_global_model_is_fedavgs_bit_for_bit(table, network):
    runs = [train(m, table, model=network, rounds=3) for m in (PLAIN, FedAvg(lr=0.1, steps=2, batch=4))]
    for name, value in runs[1].state.tensors.items():
        assert torch.equal(runs[0].state.tensors[name], value)
    assert runs[0].total("up/bytes") == runs[1].total("up/bytes")


def test_without_a_pull_clients_train_alone(table, dense_network):
    """From the same start on full batches, so that all gradients are the same."""
    alone = train(LocalOnly(lr=0.1, steps=2, batch=None), table, model=dense_network, rounds=3, runtime="inline")
    run = train(replace(PLAIN, batch=None, lam=0.0), table, model=dense_network, rounds=3, runtime="inline")
    for i in table.ids:
        for name, value in alone.memory(i)["model"].items():
            assert torch.equal(run.memory(i)["personal"][name], value)


def test_personal_models_have_statistics_of_their_own(table, network):
    run = train(replace(PLAIN, steps=1, personal_steps=5), table, model=network, rounds=2, runtime="inline")
    own = run.personal("c0")
    assert torch.equal(own[1].running_mean, run.memory("c0")["statistics"]["1.running_mean"])
    assert not torch.equal(own[1].running_mean, run.state["buffers"]["1.running_mean"])


def test_a_client_without_a_model_of_its_own_has_the_global_one(table, dense_network):
    run = train(PLAIN, table, model=dense_network, rounds=1, cohort=2, runtime="inline")
    new = next(i for i in table.ids if "personal" not in run.memory(i))
    assert torch.equal(run.personal(new)[0].weight, run.state["model"]["0.weight"])


def test_settings_that_make_no_sense():
    with pytest.raises(InputError, match="lam must be at least 0"):
        Ditto(lam=-1.0)
    with pytest.raises(InputError, match="either steps or epochs"):
        Ditto(personal_steps=1, personal_epochs=2)


def flipped(patch) -> None:
    pull = module.pull
    patch.setattr(module, "pull", lambda centre, strength: pull(centre, -0.1 * strength))


def dropped(patch) -> None:
    pull = module.pull
    patch.setattr(module, "pull", lambda centre, strength: pull(centre, 0.0))


def doubled(patch) -> None:
    """lambda ||.||^2 in place of lambda/2 ||.||^2."""
    pull = module.pull
    patch.setattr(module, "pull", lambda centre, strength: pull(centre, 2 * strength))


def started_afresh(patch) -> None:
    own = Ditto.client

    @wraps(own)
    def wrong(self, task, message, memory, *rest):
        return own(self, task, message, memory.replace(personal={}), *rest)

    patch.setattr(Ditto, "client", wrong)


@pytest.mark.parametrize("mistake", [flipped, dropped, doubled, started_afresh], ids=lambda m: m.__name__)
def test_mistakes_are_noticed(monkeypatch, mistake):
    mistake(monkeypatch)
    assert cases("ditto")[0].measure("inline") > 1e-3

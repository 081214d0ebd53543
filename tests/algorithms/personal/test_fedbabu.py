"""FedBABU: the head stays as it was, everyone is fine-tuned in the end, and mistakes are noticed."""

from dataclasses import replace
from functools import wraps

import pytest
import torch

from parley.algorithms.personal import fedbabu as module
from parley.algorithms.personal.fedbabu import FedBABU
from parley.conformance import cases
from parley.core.errors import InputError
from parley.core.message import Message
from parley.core.wire import wire_size
from parley.engine.settings import Faults
from parley.study.train import train

PLAIN = FedBABU(lr=0.1, steps=2, batch=4, personalise_after=3, finetune_steps=2)


def test_everywhere(works_everywhere):
    works_everywhere(replace(PLAIN, options={"momentum": 0.5}, keep=True))


def test_the_head_is_neither_sent_nor_changed(table, dense_network):
    run = train(replace(PLAIN, personalise_after=None), table, model=dense_network, rounds=3, runtime="inline")
    assert not run.learned.personal
    assert set(run.state["model"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    weights, start = run.learned.weights(run.model()), run.task.initial()
    assert torch.equal(weights["4.weight"], start["4.weight"])
    assert not torch.equal(weights["2.weight"], start["2.weight"])
    module_ = run.module()
    assert torch.equal(module_[4].weight, start["4.weight"])


def test_everyone_fine_tunes_once_though_cohorts_are_small(table, dense_network):
    run = train(PLAIN, table, model=dense_network, rounds=5, cohort=2, runtime="inline")
    asked = [set(record.metrics["down/bytes"].clients) for record in run.records]
    assert [len(clients) for clients in asked] == [2, 2, 2, 5, 0]
    assert all("personal" in run.memory(i) for i in table.ids)
    assert run.records[3].metrics["up/bytes"].value == 5 * wire_size(Message())


def test_who_dropped_out_is_fine_tuned_later(table, dense_network):
    faults = Faults(dropout=0.5, quorum=0.0)
    run = train(PLAIN, table, model=dense_network, rounds=12, faults=faults, runtime="inline", seed=1)
    asked = [len(record.metrics["down/bytes"].clients) for record in run.records[3:]]
    assert asked[0] == 5
    assert asked == sorted(asked, reverse=True)
    assert asked[1] > 0
    assert all("personal" in run.memory(i) for i in table.ids)


@pytest.mark.parametrize(("part", "moved"), [("all", {"0", "2", "4"}), ("head", {"4"}), ("body", {"0", "2"})])
def test_what_is_fine_tuned(table, dense_network, part, moved):
    run = train(replace(PLAIN, finetune=part), table, model=dense_network, rounds=4, runtime="inline")
    server = run.learned.weights(run.model())
    own = run.memory("c0")["personal"]
    assert {name[0] for name in own if not torch.equal(own[name], server[name])} == moved
    assert torch.equal(run.personal("c0")[4].weight, own["4.weight"])


def test_settings_that_make_no_sense():
    with pytest.raises(InputError, match="personalise_after counts rounds"):
        FedBABU(personalise_after=0)
    with pytest.raises(InputError, match="either steps or epochs"):
        FedBABU(finetune_steps=1, finetune_epochs=1)


def the_head_trains(patch) -> None:
    own = FedBABU.train
    patch.setattr(FedBABU, "train", lambda self, *a, only, **o: own(self, *a, **o))


def the_server_averages_the_head(patch) -> None:
    patch.setattr(FedBABU, "parts", lambda self, task: module.body_and_head(task.network, self.layers)[::-1])


def fine_tuned_from_the_beginning(patch) -> None:
    own = FedBABU.personalise

    @wraps(own)
    def wrong(self, task, message, *rest):
        body = module.parameters_of(task.initial(), self.parts(task)[:1])
        return own(self, task, message.replace(model=body), *rest)

    patch.setattr(FedBABU, "personalise", wrong)


@pytest.mark.parametrize(
    ("mistake", "statement"),
    [
        (the_head_trains, "under the head"),
        (the_server_averages_the_head, "under the head"),
        (fine_tuned_from_the_beginning, "fine-tuned"),
    ],
)
def test_mistakes_are_noticed(monkeypatch, mistake, statement):
    mistake(monkeypatch)
    case = next(case for case in cases("fedbabu") if statement in case.statement)
    assert case.measure("inline") > 1e-3

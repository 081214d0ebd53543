"""FedRep: a round by hand, what travels, and that mistakes are noticed."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from parley.algorithms.personal import fedrep as module
from parley.algorithms.personal.fedrep import FedRep
from parley.core.errors import InputError
from parley.data import Federation
from parley.study.train import train
from parley.training.schedules import Exponential

PLAIN = FedRep(lr=0.1, steps=2, head_steps=3, batch=None)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))


def by_hand(table: Federation, rounds: int, lr: float = 0.1, decay: float = 0.0) -> tuple[dict, dict]:
    """Algorithm 1 with modules and torch's own SGD."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        start = net()
    phi, heads = start[0].state_dict(), {i: start[2].state_dict() for i in table.ids}
    weights = {i: table.size(i) / sum(map(table.size, table.ids)) for i in table.ids}
    for _ in range(rounds):
        total = {name: torch.zeros_like(value) for name, value in phi.items()}
        for i in table.ids:
            model, data = net(), table.client(i)
            model[0].load_state_dict(phi)
            model[2].load_state_dict(heads[i])
            for layer, steps in ((model[2], 3), (model[0], 2)):
                optimizer = torch.optim.SGD(layer.parameters(), lr=lr, weight_decay=decay)
                for _ in range(steps):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(data.x), data.y).backward()
                    optimizer.step()
            heads[i] = {n: v.clone() for n, v in model[2].state_dict().items()}
            for name, value in model[0].state_dict().items():
                total[name] += weights[i] * value
        phi = total
    return phi, heads


def agrees(method: FedRep, table: Federation, decay: float = 0.0) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = net()
    run = train(method, table, model=model, rounds=3, runtime="inline")
    phi, heads = by_hand(table, 3, decay=decay)
    for name, value in run.state["model"].items():
        torch.testing.assert_close(value, phi[name.removeprefix("0.")])
    for i in table.ids:
        for name, value in run.memory(i)["head"].items():
            torch.testing.assert_close(value, heads[i][name.removeprefix("2.")])
        assert torch.equal(run.personal(i)[2].weight, run.memory(i)["head"]["2.weight"])


def test_three_rounds_by_hand(table):
    agrees(PLAIN, table)


def test_weight_decay_moves_only_what_a_phase_trains(table):
    agrees(replace(PLAIN, options={"weight_decay": 0.3}), table, 0.3)


def test_everywhere(works_everywhere):
    run = works_everywhere(replace(PLAIN, batch=4, options={"momentum": 0.5}, keep=True, schedule=Exponential(0.9)))
    assert {"optimizer", "optimizer.head", "head"} <= set(run.memory("c1").groups())


@pytest.mark.parametrize("runtime", ["inline", "stacked"])
@pytest.mark.parametrize("layers", [None, 1])
def test_features_computed_once_lead_to_the_same_numbers(table, monkeypatch, layers, runtime):
    method = replace(
        PLAIN, batch=4, head_steps=None, head_epochs=3, options={"momentum": 0.5}, keep=True, layers=layers
    )
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    once = train(method, table, model=model, rounds=3, runtime=runtime)
    monkeypatch.setattr(module, "cut", lambda network, head: None)
    each_step = train(method, table, model=model, rounds=3, runtime=runtime)
    for i in table.ids:
        ours, theirs = once.memory(i).tensors, each_step.memory(i).tensors
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-6)
    for name, value in each_step.state["model"].items():
        torch.testing.assert_close(once.state["model"][name], value, rtol=1e-4, atol=1e-6)


class Noisy(nn.Tanh):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


@pytest.mark.parametrize("between", [nn.Dropout(0.5), nn.BatchNorm1d(4), Noisy()], ids=lambda m: type(m).__name__)
def test_a_body_whose_features_change_is_not_cut(between):
    head = ("2.weight", "2.bias")
    assert module.cut(nn.Sequential(nn.Linear(6, 4), between, nn.Linear(4, 3)), head) is None
    body, rest = module.cut(nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.0), nn.Linear(4, 3)), head)
    assert (len(body), [name for name, _ in rest.named_parameters()]) == (2, ["2.weight", "2.bias"])


def test_heads_and_their_statistics_stay(table, network):
    run = train(PLAIN, table, model=network, rounds=2, runtime="inline")
    assert {name.split(".")[0] for name in run.state["model"]} == {"0", "1", "3", "4"}
    kept = run.memory("c0")
    assert set(kept["head"]) == {"5.weight", "5.bias"}
    assert "1.running_mean" in run.state["buffers"]
    assert not kept.get("buffers")


def test_statistics_of_a_head_are_the_clients(table):
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3), nn.BatchNorm1d(3))
    run = train(replace(PLAIN, layers=1), table, model=model, rounds=2, runtime="inline")
    assert not run.state.get("buffers")
    assert set(run.memory("c0")["buffers"]) == {"3.running_mean", "3.running_var", "3.num_batches_tracked"}
    own = run.personal("c0")
    assert torch.equal(own[3].running_mean, run.memory("c0")["buffers"]["3.running_mean"])
    assert not torch.equal(own[3].running_mean, run.personal("c1")[3].running_mean)


def test_settings_that_make_no_sense(table):
    with pytest.raises(InputError, match="either steps or epochs"):
        FedRep(head_steps=3, head_epochs=1)
    with pytest.raises(InputError, match="at least one layer each, and the model has 1"):
        train(PLAIN, table, model=lambda: nn.Linear(6, 3), rounds=1)


# -- deliberate mistakes --------------------------------------------------------------------------------------------


def everything_moves(patch) -> None:
    own = FedRep.train
    patch.setattr(FedRep, "train", lambda self, *a, only=None, **o: own(self, *a, **o))


def phases_swapped(patch) -> None:
    patch.setattr(FedRep, "parts", lambda self, task: module.body_and_head(task.network, self.layers)[::-1])


def heads_forgotten(patch) -> None:
    own = FedRep.reply
    patch.setattr(FedRep, "reply", lambda self, task, local, send, keep: own(self, task, local, send, {}))


@pytest.mark.parametrize("mistake", [everything_moves, phases_swapped, heads_forgotten], ids=lambda m: m.__name__)
def test_mistakes_are_noticed(monkeypatch, table, mistake):
    mistake(monkeypatch)
    with pytest.raises((AssertionError, InputError, KeyError)):
        agrees(PLAIN, table)

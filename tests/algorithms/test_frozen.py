"""Frozen parameters (requires_grad = False) never travel, are not averaged or counted, and stay in the model."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from parley import Evaluation, train
from parley.algorithms.averaging.feddyn import FedDyn
from parley.algorithms.averaging.fednova import FedNova
from parley.algorithms.averaging.local_update import FedAdam, FedAvg, FedProx
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.parts.fedals import FedALS
from parley.algorithms.parts.fedals_scaffold import FedALSScaffold
from parley.algorithms.personal.ditto import Ditto
from parley.algorithms.personal.fedrep import FedRep
from parley.algorithms.personal.moon import MOON
from parley.core.message import State
from parley.data import digits
from parley.engine.listeners import Listener

WORK = {"lr": 0.05, "steps": 2, "batch": 8}


class Adapted(nn.Module):
    """A frozen map between two that train, one of which has a frozen bias."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 12)
        self.base = nn.Linear(12, 12).requires_grad_(False)
        self.outer = nn.Linear(12, 10)
        self.inner.bias.requires_grad_(False)

    def forward(self, x):
        return self.outer(torch.tanh(self.base(self.inner(x.flatten(1)))))


TRAINED = {"inner.weight", "outer.weight", "outer.bias"}
ENTRIES = 64 * 12 + 12 * 10 + 10


class Travelling(Listener):
    """The names and the number of entries of all that is sent."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.most = 0

    def exchange(self, number, index, asked, sent, replies):
        for message in (*sent.values(), *replies.values()):
            for group in message.groups():
                tree = message.get(group)
                self.names |= set(tree)
                self.most = max(self.most, sum(value.numel() for value in tree.values()))

    def evaluate(self, number: int, state: State):
        for group in state.groups():
            self.names |= {name for name in state.get(group) if name.startswith(("inner", "base", "outer"))}


METHODS: dict[str, Callable[[], object]] = {
    "fedavg": lambda: FedAvg(**WORK), "momentum": lambda: FedAvg(**WORK, options={"momentum": 0.9}, keep=True),
    "fedprox": lambda: FedProx(**WORK), "fedadam": lambda: FedAdam(**WORK), "scaffold": lambda: Scaffold(**WORK),
    "fednova": lambda: FedNova(**WORK), "feddyn": lambda: FedDyn(**WORK), "moon": lambda: MOON(**WORK),
    "fedals": lambda: FedALS(**WORK, alpha=2), "fedals-scaffold": lambda: FedALSScaffold(**WORK, alpha=2),
    "fedrep": lambda: FedRep(**WORK), "ditto": lambda: Ditto(**WORK),
}  # fmt: skip


def trained(method, runtime: str = "inline", rounds: int = 2):
    torch.manual_seed(0)
    module, seen = Adapted(), Travelling()
    federation = digits().split("sorted", 3, seed=0)
    run = train(
        method,
        federation,
        model=module,
        rounds=rounds,
        runtime=runtime,
        listeners=[seen],
        evaluation=Evaluation(every=rounds),
        workers=1 if runtime in ("pool", "wire") else None,
    )
    return run, seen, module


@pytest.mark.parametrize("name", METHODS)
def test_frozen_parameters_do_not_travel(name: str):
    run, seen, module = trained(METHODS[name]())
    assert not any(own.startswith("base") or own == "inner.bias" for own in seen.names)
    assert seen.most <= ENTRIES
    assert not any(record.failures for record in run.records)
    own = run.personal(run.federation.ids[0]) if run.learned.personal else run.module()
    final = own.state_dict()
    for frozen in ("base.weight", "base.bias", "inner.bias"):
        assert torch.equal(final[frozen], module.state_dict()[frozen])
    assert not torch.equal(final["inner.weight"], module.inner.weight)


@pytest.mark.parametrize("runtime", ["stacked", "pool", "wire"])
def test_every_runtime_sends_and_learns_the_same(runtime: str):
    mine, seen, _ = trained(FedALS(**WORK, alpha=2), "inline")
    other, also, _ = trained(FedALS(**WORK, alpha=2), runtime)
    assert seen.names == also.names == TRAINED
    for direction in ("up/bytes", "down/bytes"):
        assert mine.total(direction) == other.total(direction)
    for name, value in mine.model()["model"].items():
        torch.testing.assert_close(other.model()["model"][name], value, rtol=1e-5, atol=1e-6)


def test_what_trains_moves_as_in_a_loop_of_its_own():
    """One client, full batches: gradient descent on the parameters that train."""
    federation = digits().split("iid", 1, seed=0)
    torch.manual_seed(0)
    module = Adapted()
    run = train(FedAvg(lr=0.1, steps=3, batch=0), federation, model=module, rounds=2, runtime="inline")
    data, expected = federation.client(federation.ids[0]), Adapted()
    expected.load_state_dict(module.state_dict())
    descent = torch.optim.SGD([p for p in expected.parameters() if p.requires_grad], lr=0.1)
    for _ in range(6):
        descent.zero_grad()
        nn.functional.cross_entropy(expected(data.x), data.y).backward()
        descent.step()
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(run.module().state_dict()[name], value, rtol=1e-5, atol=1e-6)

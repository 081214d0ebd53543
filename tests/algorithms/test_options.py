"""What a method with local SGD can be told counts for each of them in every runtime, or is refused in a sentence."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import nn

from parley.algorithms import algorithms
from parley.algorithms.averaging.local_sgd import LocalSGD
from parley.algorithms.averaging.server import HeavyBall
from parley.algorithms.boosting.distilling import Distilling
from parley.core.errors import InputError, UnsupportedError
from parley.core.message import Payload
from parley.data import Federation
from parley.engine.run import Run
from parley.study.train import train
from parley.training.schedules import Exponential

METHODS = [
    name
    for name in algorithms
    if issubclass(algorithms[name], LocalSGD) and algorithms[name].__module__.startswith("parley.")
]
STILL = ("fedsgd", "minibatch-sgd")
"""Their clients do not move: lr = 0 is what they are."""
ONE_BY_ONE = ("datashare",)
MOMENTUM = {"options": {"momentum": 0.9}}

OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lr": ({}, {"lr": 0.2}),
    "steps": ({}, {"steps": 2}),
    "epochs": ({}, {"steps": None, "epochs": 2}),
    "batch": ({}, {"batch": 3}),
    "order": ({}, {"order": "independent"}),
    "optimizer": ({}, {"optimizer": "adam"}),
    "options": ({}, MOMENTUM),
    "schedule": ({}, {"schedule": Exponential(0.5)}),
    "clip": ({}, {"clip": 0.05}),
    "keep": (MOMENTUM | {"keep": False}, MOMENTUM | {"keep": True}),
}
"""Settings, and settings that must give something else."""

OFTEN = ("fedavg", "scaffold", "fedals", "fedrep")
"""Those that are tried in processes every time, the others in the slow suite."""

REFUSED = {
    **{
        (name, option): 'form = "gradients" is defined for plain local SGD'
        for name in ("local-update", "fomaml", "maml", *STILL)
        for option in ("optimizer", "options", "keep")
    },
    **{(name, "schedule"): "lr is 0" for name in STILL},
    ("scaffold", "optimizer"): 'use option = "I"',
    ("fedals-scaffold", "optimizer"): "take sgd",
}


def made(name: str, settings: dict[str, Any]) -> LocalSGD:
    base: dict[str, Any] = {"steps": 3, "batch": 4} | ({} if name in STILL else {"lr": 0.1})
    if issubclass(algorithms[name], Distilling):  # hundreds of Adam's steps would blow up what rounding differs in
        base |= {"student_epochs": 2, "student_optimizer": "sgd"}
    return algorithms[name](**base | settings)


def run(method: LocalSGD, table: Federation, runtime: str = "inline") -> Run:
    shown = table.with_public(table.client(table.ids[0]).x)
    return train(method, shown, model=dense, rounds=3, runtime=runtime, workers=2, secret=bytes(16))


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def results(done: Run) -> list[Payload]:
    return [done.state, *[done.memory(client) for client in done.federation.ids]]


def same(one: Run, other: Run, equal: Callable[[torch.Tensor, torch.Tensor], bool]) -> bool:
    pairs = list(zip(results(one), results(other), strict=True))
    assert all(a.tensors.keys() == b.tensors.keys() for a, b in pairs)
    return all(equal(value, b.tensors[name]) for a, b in pairs for name, value in a.tensors.items())


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5)


OTHERS = {"theta": "last", "alpha": 3, "server": HeavyBall(), "form": "delta", "clip": 1.0}


@pytest.mark.parametrize("name", METHODS)
def test_a_setting_that_a_method_would_refuse_is_none_of_its_settings(name):
    settings = {field.name for field in fields(algorithms[name])}
    for option in OTHERS.keys() & settings:
        made(name, {option: OTHERS[option]})
    assert ("theta" in settings) == ("form" in settings) == (name == "local-update")


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name in METHODS for option in OPTIONS if (name, option) != ("maml", "clip")]
)
def test_an_option_counts_or_is_refused(table, name, option):
    before, after = OPTIONS[option]
    if (name, option) in REFUSED:
        with pytest.raises(InputError, match=REFUSED[name, option]) as caught:
            made(name, after)
        assert "\n" not in str(caught.value)
        return
    one, other = run(made(name, before), table), run(made(name, after), table)
    assert not any(failure for record in other.records for failure in record.failures)
    assert not _alike(one, other), f"{option} changes nothing"
    if name in ONE_BY_ONE:
        with pytest.raises(UnsupportedError, match='use "inline"'):
            run(made(name, after), table, "stacked")
    else:
        assert same(other, run(made(name, after), table, "stacked"), near)


def _alike(one: Run, other: Run) -> bool:
    """The tensors both have are the same."""
    pairs = zip(results(one), results(other), strict=True)
    return all(torch.equal(v, b.tensors[n]) for a, b in pairs for n, v in a.tensors.items() if n in b.tensors)


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_all_options_together_give_the_same_bits_in_processes(table, name):
    settings: dict[str, Any] = {}
    for option in ("epochs", "order", "schedule", "clip", "keep"):
        if (name, option) not in REFUSED and (name, option) != ("maml", "clip"):
            settings |= OPTIONS[option][1]
    method = made(name, settings)
    assert same(run(method, table), run(method, table, "pool"), torch.equal)

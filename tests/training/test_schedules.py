"""Schedules: the closed form, steps counted over rounds, one client or a stack of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from parley.algorithms.parts.fedals import FedALS
from parley.algorithms.parts.fedals_scaffold import FedALSScaffold
from parley.core.errors import InputError, UnsupportedError
from parley.core.key import Key
from parley.core.message import Memory
from parley.core.wire import decode, encode
from parley.study.toml import study_from_dict
from parley.training.batches import Work
from parley.training.local import train
from parley.training.optimizers import Kept, LocalOptimizer
from parley.training.schedules import Constant, Inverse, Schedule, schedules
from parley.training.stack import ClientStack, KeyStack

KEY = Key(1)
OPTIMIZERS = {"sgd": {}, "adamw": {"weight_decay": 1e-2}, "rmsprop": {}}


@pytest.fixture
def task(seeded, task_of):
    return task_of(seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))), "half-squares", (6,), 3)


@settings(deadline=None, max_examples=30)
@given(taken=st.integers(0, 10**6), every=st.floats(0.1, 1e4), offset=st.floats(0.1, 100))
def test_inverse_is_paper_004s_formula(taken, every, offset):
    assert Inverse().factor(taken) == pytest.approx(1 / (taken / 100 + 10), rel=1e-15)
    assert Inverse(every, offset).factor(taken) == pytest.approx(every / (taken + every * offset), rel=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_torchs_own_schedule(run, name, task, clients):
    data = clients((8,), (6,), 3, "half-squares")[0]
    optimizer = LocalOptimizer(name, 0.3, OPTIMIZERS[name], Inverse(2, 1))
    local = run(task, data, optimizer, 6)
    module = task.module
    parameters = [p.detach().clone().requires_grad_() for p in module.parameters()]
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}[name]
    by_hand = kind(parameters, lr=0.3, **OPTIMIZERS[name])
    pace = torch.optim.lr_scheduler.LambdaLR(by_hand, lambda t: 1 / (t / 2 + 1))
    for _ in range(6):
        values = dict(zip(task.initial(), parameters, strict=True))
        loss = task.loss(torch.func.functional_call(module, values, (data.x,)), data.y).mean()
        by_hand.zero_grad()
        loss.backward()
        by_hand.step()
        pace.step()
    for expected, value in zip(parameters, local.parameters.values(), strict=True):
        torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("stacked", [False, True])
def test_the_count_goes_on_where_it_stood(run, name, stacked, task, clients):
    optimizer = LocalOptimizer(name, 0.1, OPTIMIZERS[name], Inverse(1, 1))
    members = clients((9, 7, 5), (6,), 3, "half-squares")
    data = ClientStack.of(members) if stacked else members[0]
    key = KeyStack((KEY,) * 3) if stacked else KEY
    whole = run(task, data, optimizer, 7, key=key)
    first = run(task, data, optimizer, 3, key=key)
    back = Kept.of(decode(encode(Memory.of(**first.optimizer.parts())), Memory))
    second = run(task, data, optimizer, 4, first.parameters, back, key)
    assert second.optimizer.counts == whole.optimizer.counts
    assert whole.optimizer.counts["taken"] == 7
    for n, value in whole.parameters.items():
        assert torch.equal(second.parameters[n], value), n
    restarted = Kept(back.slots, {k: v for k, v in back.counts.items() if k != "taken"})
    other = run(task, data, optimizer, 4, first.parameters, restarted, key)
    assert not torch.equal(other.parameters["0.weight"], whole.parameters["0.weight"])


def test_a_stack_takes_each_clients_steps(in_stack, run, task, clients):
    members = clients((9, 7), (6,), 3, "half-squares")
    optimizer = LocalOptimizer("sgd", 0.1, {}, Inverse(1, 1))
    stack = run(task, ClientStack.of(members), optimizer, 4, key=KeyStack((KEY,) * 2))
    for row, member in enumerate(members):
        alone = run(task, member, optimizer, 4)
        for name, value in alone.parameters.items():
            torch.testing.assert_close(stack.parameters[name][row], value, rtol=1e-12, atol=1e-12)
    uneven = Work(epochs=1, batch=3)
    stack = ClientStack.of(clients((9, 3), (6,), 3, "half-squares"))
    options = {"work": uneven, "optimizer": optimizer, "kept": Kept()}
    with pytest.raises(UnsupportedError, match="different numbers of steps"):
        in_stack(lambda: train(task, task.initial(), stack, KeyStack((KEY,) * 2), **options), 2)


def test_the_step_sum_is_that_of_the_factors():
    optimizer = LocalOptimizer("sgd", 0.3, {}, Inverse(1, 1))
    assert float(optimizer.step_sum(4)) == pytest.approx(0.3 * (1 + 1 / 2 + 1 / 3 + 1 / 4), rel=1e-14)
    assert not optimizer.plain
    assert LocalOptimizer("sgd", 0.3, {}, Constant()).plain


def test_a_study_names_it_and_keeps_it():
    table = {
        "data": {"name": "digits", "clients": 2},
        "model": {"name": "linear"},
        "algorithm": {"name": "fedals", "schedule": {"name": "inverse", "offset": 5.0}},
    }
    study = study_from_dict(table)
    assert study.algorithm.schedule == Inverse(100.0, 5.0)
    assert study_from_dict(study.resolved()).algorithm.schedule == Inverse(100.0, 5.0)
    assert study_from_dict(table | {"algorithm": {"name": "fedals"}}).algorithm.schedule == Constant()
    with pytest.raises(InputError, match="did you mean 'inverse'"):
        study_from_dict(table | {"algorithm": {"name": "fedals", "schedule": {"name": "invers"}}})
    with pytest.raises(InputError, match="every and offset must be above 0"):
        study_from_dict(table | {"algorithm": {"name": "fedals", "schedule": {"name": "inverse", "every": 0.0}}})


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="set keep = true"):
        FedALS(schedule=Inverse(), keep=False)
    with pytest.raises(InputError, match="leave out schedule"):
        FedALSScaffold(schedule=Inverse())
    assert all(issubclass(schedules[name], Schedule) for name in schedules)

"""Optimizer state that runs through: training in two halves is training at once, for every optimizer there is."""

import pytest
import torch
from torch import nn

from parley.core.errors import UnsupportedError
from parley.core.key import Key
from parley.core.message import Memory
from parley.core.wire import decode, encode
from parley.learn.batches import Work
from parley.learn.local import train
from parley.learn.optimizers import Kept, LocalOptimizer, _classes
from parley.learn.stack import ClientStack, KeyStack

KEY = Key(1)


@pytest.fixture
def task(seeded, task_of):
    return task_of(seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))), "half-squares", (6,), 3)


def run(task, data, optimizer, steps, start=None, kept=None, key=KEY):
    return train(
        task, task.initial() if start is None else start, data, key, work=Work(steps=steps),
        optimizer=optimizer, kept=Kept() if kept is None else kept,
    )  # fmt: skip


def through_memory(kept: Kept) -> Kept:
    """As it comes back from a client's disk."""
    return Kept.of(decode(encode(kept.memory()), Memory))


@pytest.mark.parametrize("name", sorted(_classes()))
@pytest.mark.parametrize("stacked", [False, True])
def test_two_halves_are_the_whole(name, stacked, task, clients):
    options = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1} if name == "sgd" else {}
    optimizer = LocalOptimizer(name, 0.01, options)
    members = clients((9, 7, 5), (6,), 3, "half-squares")
    data = ClientStack(members) if stacked else members[0]
    key = KeyStack((KEY,) * 3) if stacked else KEY
    whole = run(task, data, optimizer, 7, key=key)
    first = run(task, data, optimizer, 3, key=key)
    second = run(task, data, optimizer, 4, first.parameters, through_memory(first.optimizer), key)
    for n, value in whole.parameters.items():
        assert torch.equal(second.parameters[n], value), n
    assert second.optimizer.counts == whole.optimizer.counts
    if name != "asgd":  # the state must matter, or this shows nothing
        fresh = run(task, data, optimizer, 4, first.parameters, key=key)
        assert whole.optimizer.slots
        assert not torch.equal(fresh.parameters["0.weight"], whole.parameters["0.weight"])


def test_clients_that_finish_early_keep_their_momentum(task, clients):
    members = clients((9, 6, 3), (6,), 3, "half-squares")
    optimizer, work = LocalOptimizer("sgd", 0.1, {"momentum": 0.9}), Work(epochs=1, batch=3)
    stack = train(
        task, task.initial(), ClientStack(members), KeyStack((KEY,) * 3), work=work, optimizer=optimizer, kept=Kept()
    )
    assert stack.steps == (3, 2, 1)
    for row, member in enumerate(members):
        alone = train(task, task.initial(), member, KEY, work=work, optimizer=optimizer, kept=Kept())
        for name, value in alone.optimizer.slots.items():
            torch.testing.assert_close(stack.optimizer.slots[name][row], value, rtol=1e-12, atol=1e-12)


def test_step_counts_that_differ_in_a_stack_are_refused(task, clients):
    members = clients((9, 3), (6,), 3, "half-squares")
    with pytest.raises(UnsupportedError, match="different numbers of steps"):
        train(
            task, task.initial(), ClientStack(members), KeyStack((KEY,) * 2), work=Work(epochs=1, batch=3),
            optimizer=LocalOptimizer("adam"), kept=Kept(),
        )  # fmt: skip


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_travel_is_the_sum_of_momentum_weights(beta):
    steps = 7
    weights = [sum(beta**j for j in range(steps - k)) for k in range(steps)]
    optimizer = LocalOptimizer("sgd", 0.3, {"momentum": beta, "weight_decay": 0.5})
    assert optimizer.travel(steps) == pytest.approx(sum(weights), rel=1e-14)
    closed = (steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta)  # FedNova, Section 4
    assert optimizer.travel(steps) == pytest.approx(closed, rel=1e-14)
    assert optimizer.stride == pytest.approx(optimizer.travel(1001) - optimizer.travel(1000))


def test_travel_counts_steps_without_momentum():
    assert LocalOptimizer(lr=0.1).travel(10) == 10.0
    assert LocalOptimizer("sgd", 0.1, {"weight_decay": 0.1}).travel(10) == 10.0
    assert LocalOptimizer("adam", 0.1).travel(10) == pytest.approx(10, rel=1e-6)
    assert LocalOptimizer("adam", 0.1).stride == 1.0


def test_nothing_is_kept_unless_asked(task, clients):
    data = clients((5,), (6,), 3, "half-squares")[0]
    local = train(
        task, task.initial(), data, KEY, work=Work(steps=2), optimizer=LocalOptimizer("sgd", 0.1, {"momentum": 0.9})
    )
    assert local.optimizer == Kept()

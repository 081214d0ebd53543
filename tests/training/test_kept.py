"""Optimizer state that runs through: training in two halves is training at once, for every optimizer there is."""

import pytest
import torch
from torch import nn

from parley.core.errors import UnsupportedError
from parley.core.key import Key
from parley.core.message import Memory
from parley.core.wire import decode, encode
from parley.training.batches import Work
from parley.training.local import train
from parley.training.optimizers import Kept, LocalOptimizer, _classes
from parley.training.stack import ClientStack, KeyStack

KEY = Key(1)


@pytest.fixture
def task(seeded, task_of):
    return task_of(seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))), "half-squares", (6,), 3)


def through_memory(kept: Kept) -> Kept:
    """As it comes back from a client's disk."""
    return Kept.of(decode(encode(Memory.of(**kept.parts())), Memory))


@pytest.mark.parametrize("name", sorted(_classes()))
@pytest.mark.parametrize("stacked", [False, True])
def test_two_halves_are_the_whole(run, name, stacked, task, clients):
    options = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1} if name == "sgd" else {}
    optimizer = LocalOptimizer(name, 0.01, options)
    members = clients((9, 7, 5), (6,), 3, "half-squares")
    data = ClientStack.of(members) if stacked else members[0]
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


def test_clients_that_finish_early_keep_their_momentum(in_stack, task, clients):
    members = clients((9, 6, 3), (6,), 3, "half-squares")
    optimizer, work = LocalOptimizer("sgd", 0.1, {"momentum": 0.9}), Work(epochs=1, batch=3)
    keys = KeyStack((KEY,) * 3)
    stack = in_stack(
        lambda: train(task, task.initial(), ClientStack.of(members), keys, work=work, optimizer=optimizer, kept=Kept()),
        3,
    )
    for row, member in enumerate(members):
        alone = train(task, task.initial(), member, KEY, work=work, optimizer=optimizer, kept=Kept())
        for name, value in alone.optimizer.slots.items():
            torch.testing.assert_close(stack.optimizer.slots[name][row], value, rtol=1e-12, atol=1e-12)


def test_step_counts_that_differ_in_a_stack_are_refused(in_stack, task, clients):
    stack = ClientStack.of(clients((9, 3), (6,), 3, "half-squares"))
    options = {"work": Work(epochs=1, batch=3), "optimizer": LocalOptimizer("adam"), "kept": Kept()}
    with pytest.raises(UnsupportedError, match="different numbers of steps"):
        in_stack(lambda: train(task, task.initial(), stack, KeyStack((KEY,) * 2), **options), 2)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_step_sums_are_those_of_momentum_weights(beta):
    steps = 7
    weights = [sum(beta**j for j in range(steps - k)) for k in range(steps)]
    optimizer = LocalOptimizer("sgd", 0.3, {"momentum": beta, "weight_decay": 0.5})
    assert float(optimizer.step_sum(steps)) == pytest.approx(0.3 * sum(weights), rel=1e-14)
    closed = (steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta)  # FedNova, Section 4
    assert float(optimizer.step_sum(steps)) == pytest.approx(0.3 * closed, rel=1e-14)
    assert 0.3 * optimizer.stride == pytest.approx(float(optimizer.step_sum(1001) - optimizer.step_sum(1000)))
    assert optimizer.step_sum((3, 2)).tolist() == [float(optimizer.step_sum(3)), float(optimizer.step_sum(2))]


def test_step_sums_count_steps_without_momentum():
    assert float(LocalOptimizer(lr=0.1).step_sum(10)) == pytest.approx(1.0)
    assert float(LocalOptimizer("sgd", 0.1, {"weight_decay": 0.1}).step_sum(10)) == pytest.approx(1.0)
    assert float(LocalOptimizer("adam", 0.1).step_sum(10)) == pytest.approx(1.0, rel=1e-6)
    assert LocalOptimizer("adam", 0.1).stride == 1.0


def test_nothing_is_kept_unless_asked(task, clients):
    data = clients((5,), (6,), 3, "half-squares")[0]
    local = train(
        task, task.initial(), data, KEY, work=Work(steps=2), optimizer=LocalOptimizer("sgd", 0.1, {"momentum": 0.9})
    )
    assert local.optimizer == Kept()

"""FedNova: a round written out, with unequal steps and momentum; buffers keep their plain mean."""

import numpy as np
import pytest
import torch
from torch import nn

from parley.algorithms.averaging.fednova import FedNova
from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.protocol import Replies
from parley.conformance.problem import quadratic_problem, weights_of
from parley.core.key import Key
from parley.core.message import Message
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.settings import Sampling
from parley.study.train import make_task

LR, STEPS = 0.1, (1, 2, 3, 4)


def by_hand(given, beta: float) -> np.ndarray:
    x, d, a = given.start, [], []
    for A, c, K in zip(given.clients.A, given.clients.c, STEPS, strict=True):
        y, v, weights = x, 0 * x, []
        for k in range(K):
            v = beta * v + A @ (y - c)
            y = y - LR * v
            weights.append(sum(beta**j for j in range(K - k)))
        a.append(sum(weights))
        d.append((x - y) / a[-1])
    return x - (given.clients.p @ a) * (given.clients.p @ d)


@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("runtime", ["inline", "stacked"])
def test_one_round_by_hand(beta, runtime):
    given = quadratic_problem()
    options = {"momentum": beta} if beta else {}
    run = given.run(FedNova(lr=LR, epochs=1, batch=3, options=options), 1, runtime)
    np.testing.assert_allclose(weights_of(run), by_hand(given, beta), rtol=1e-12)


def test_counting_epochs_in_place_of_steps_would_be_noticed(monkeypatch):
    from parley.training.optimizers import LocalOptimizer

    given = quadratic_problem()
    monkeypatch.setattr(LocalOptimizer, "_moved", lambda self, steps: 1.0)
    run = given.run(FedNova(lr=LR, epochs=1, batch=3), 1)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(weights_of(run), by_hand(given, 0.0), rtol=1e-3)


def test_it_removes_what_unequal_steps_do_to_fedavg():
    """FedAvg's point leans to the clients with many steps; FedNova's is nearer to the true optimum."""
    given = quadratic_problem()
    best = given.clients.empirical_minimiser
    apart = [
        np.linalg.norm(weights_of(given.run(method, 80)) - best)
        for method in (FedNova(lr=0.05, epochs=1, batch=3), FedAvg(lr=0.05, epochs=1, batch=3))
    ]
    assert apart[0] < 0.5 * apart[1]


def test_weights_that_do_not_sum_to_one_scale_the_step_once():
    given = quadratic_problem()
    cohort = Sampling(size=2, scheme="unbiased")
    a, b = (weights_of(given.run(kind(lr=LR, steps=2, batch=None), 4, "inline", cohort)) for kind in (FedNova, FedAvg))
    assert np.array_equal(a, b)


def test_buffers_keep_their_plain_mean():
    random = Key(3).torch()
    data = ClientData(torch.randn(6, 1, 6, 6, generator=random), torch.randint(3, (6,), generator=random))
    federation = Federation(DataInfo("images", (1, 6, 6), 3, "classification"), ("a",), InMemory((data,)))
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3))
    task = make_task(federation, model, 0)
    method = FedNova(steps=1)
    state = method.init(task, Key(0))
    replies = {}
    for name, a, value in (("a", 1.0, 2.0), ("b", 3.0, 6.0)):
        buffers = {n: torch.full_like(b, value) for n, b in task.initial_buffers().items()}
        update = {n: torch.full_like(v, a) for n, v in task.initial().items()}
        replies[name] = Message.of(update=update, a=torch.tensor(a, dtype=torch.float64), buffers=buffers)
    new = method.aggregate(task, state, Replies(replies, {"a": 0.25, "b": 0.75}), 1, Key(0))
    assert torch.equal(new["buffers"]["1.running_mean"], torch.full((2,), 5.0))
    # d_i = 1 for both and tau_eff = 2.5
    torch.testing.assert_close(state["model"]["3.bias"] - new["model"]["3.bias"], torch.full((3,), 2.5))

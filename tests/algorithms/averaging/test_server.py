"""Server optimizers against torch's own and by hand, and what they refuse."""

from itertools import pairwise

import pytest
import torch

from parley.algorithms.averaging.local_update import FedAdam
from parley.algorithms.averaging.server import (
    Adagrad,
    Adam,
    Descent,
    HeavyBall,
    Nesterov,
    ServerOptimizer,
    Yogi,
    server_optimizers,
)
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.tree import Tree, clone

ROUNDS = 25


def start() -> Tree:
    random = Key(0).torch()
    return {"w": torch.randn(4, 3, generator=random, dtype=torch.float64), "b": torch.ones((), dtype=torch.float64)}


def gradients() -> list[Tree]:
    random = Key(1).torch()
    return [
        {n: torch.randn(v.shape, generator=random, dtype=v.dtype) for n, v in start().items()} for _ in range(ROUNDS)
    ]


def played(server: ServerOptimizer) -> list[Tree]:
    """The models after each step; nothing that was handed in or out may change afterwards."""
    x = start()
    slots, models, copies = server.start(x), [x], [clone(x)]
    for q in gradients():
        x, slots = server.step(x, q, slots)
        models.append(x)
        copies.append(clone(x))
    for model, copy in zip(models, copies, strict=True):
        assert all(torch.equal(model[n], copy[n]) for n in model)
    return models[1:]


def by_torch(make) -> list[Tree]:
    parameters = {n: torch.nn.Parameter(v) for n, v in start().items()}
    optimizer = make(parameters.values())
    models = []
    for q in gradients():
        for name, parameter in parameters.items():
            parameter.grad = q[name]
        optimizer.step()
        models.append(clone(parameters))
    return models


@pytest.mark.parametrize(
    ("server", "make"),
    [
        (Descent(0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
        (HeavyBall(0.3, momentum=0.8), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.8)),
        (
            Adam(0.03, 0.8, 0.95, epsilon=1e-3, bias_correction=True),
            lambda p: torch.optim.Adam(p, lr=0.03, betas=(0.8, 0.95), eps=1e-3),
        ),
        (Adagrad(0.1, epsilon=1e-2), lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_is_torch_s(server: ServerOptimizer, make):
    for ours, theirs in zip(played(server), by_torch(make), strict=True):
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-12, atol=1e-12)


def test_nesterov_takes_its_gradients_at_the_extrapolated_point():
    server = Nesterov(0.3, momentum=0.8)
    x = y = start()
    slots, settled = server.start(x), [x["w"]]
    model = x
    for q in gradients():
        model, slots = server.step(model, q, slots)
        settled.append(y["w"] - 0.3 * q["w"])
        y = {"w": settled[-1] + 0.8 * (settled[-1] - settled[-2])}
        torch.testing.assert_close(model["w"], y["w"], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(server.iterate(model, slots)["w"], settled[-1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [Adam, Yogi, Adagrad])
def test_adaptive_moments_by_hand(kind: type[Adam]):
    server = kind(0.05, 0.7, 0.9, epsilon=0.01)
    x, m, v = start()["w"], torch.zeros(4, 3).double(), torch.zeros(4, 3).double()
    for q, model in zip(gradients(), played(server), strict=True):
        g = q["w"]
        m = 0.7 * m + 0.3 * g
        if kind is Adam:
            v = 0.9 * v + 0.1 * g**2
        elif kind is Yogi:
            v = v - 0.1 * g**2 * torch.where(v > g**2, 1.0, -1.0)
        else:
            v = v + g**2
        x = x - 0.05 * m / (v**0.5 + 0.01)
        torch.testing.assert_close(model["w"], x, rtol=1e-12, atol=1e-12)


def test_momentum_of_zero_is_descent():
    for plain, server in [(a, b) for a in [Descent(0.2)] for b in (HeavyBall(0.2, 0.0), Nesterov(0.2, 0.0))]:
        for one, other in zip(played(plain), played(server), strict=True):
            assert all(torch.equal(one[n], other[n]) for n in one)


def test_slots_travel_in_the_state(quadratics):
    """A server that is restarted from its state goes on as if nothing had happened."""
    from parley.algorithms.protocol import Replies
    from parley.core.message import Message, State
    from parley.study.train import make_task

    problem = quadratics(0)
    task = make_task(problem.federation, problem.model, 0, "half-squares")
    algorithm = FedAdam(server=Adam(0.1, bias_correction=True))
    states = [algorithm.init(task, Key(0))]
    for number in range(4):
        replies = Replies({"a": Message.of(update={"weight": torch.full((1, 3), 1.0 + number).double()})}, {"a": 1.0})
        states.append(algorithm.aggregate(task, State(dict(states[-1].tensors)), replies, number, Key(0)))
    assert [float(state.tensor("server-t/t")) for state in states] == [0, 1, 2, 3, 4]
    for before, after in pairwise(states):
        assert not torch.equal(before.tensor("server-m/weight"), after.tensor("server-m/weight"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Descent(0.0),
        lambda: Descent(-1.0),
        lambda: Descent(float("nan")),
        lambda: HeavyBall(0.1, 1.0),
        lambda: Nesterov(0.1, -0.1),
        lambda: Adam(beta1=1.0),
        lambda: Yogi(beta2=1.5),
        lambda: Adam(epsilon=0.0),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(InputError, match=r"server|lr must be a finite number"):
        make()


def test_names():
    assert list(server_optimizers) == ["adagrad", "adam", "heavy-ball", "nesterov", "sgd", "yogi"]

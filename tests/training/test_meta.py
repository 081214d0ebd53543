"""MAML's gradient: against autograd by hand, finite differences and the closed form on quadratics."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from parley.core.errors import UnsupportedError
from parley.core.key import Key
from parley.core.tree import Tree
from parley.data import ClientData
from parley.training.batches import Work
from parley.training.meta import meta_gradient
from parley.training.stack import ClientStack, KeyStack
from parley.training.task import Task

LR, ALPHA = 0.3, 0.4


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def rows(plan, data: ClientData) -> list[ClientData]:
    if plan.indices is None:
        return [data] * plan.steps
    return [ClientData(data.x[part], data.y[part]) for part in plan.indices.split(list(plan.lengths))]


def objective(task: Task, start: Tree, data: ClientData, key: Key, work: Work, centre: Tree) -> Tensor:
    """F(X_K(start)) with the centre of the proximal term fixed, written out."""
    batches = rows(work.plan(len(data), key.fold("batches")), data)
    (query,) = rows(Work(1, None, work.batch).plan(len(data), key.fold("query")), data)

    def loss(at: Tree, batch: ClientData) -> Tensor:
        value = task.loss(functional_call(task.module, at, (batch.x,)), batch.y).mean()
        return value + ALPHA / 2 * sum(((at[n] - centre[n]) ** 2).sum() for n in at)

    at = start
    for batch in batches:
        steps = torch.autograd.grad(loss(at, batch), list(at.values()), create_graph=True)
        at = {n: v - LR * g for (n, v), g in zip(at.items(), steps, strict=True)}
    return loss(at, query)


@pytest.mark.parametrize("work", [Work(steps=3, batch=4), Work(epochs=1, batch=4), Work(steps=2)], ids=str)
def test_the_gradient_through_the_steps(seeded, task_of, clients, work: Work):
    task = task_of(seeded(net), "cross-entropy", (4,), 2)
    (data,) = clients((10,), (4,), 2, "cross-entropy")
    start = {n: v.requires_grad_() for n, v in task.initial().items()}
    centre = task.initial()
    by_hand = torch.autograd.grad(objective(task, start, data, Key(3), work, centre), list(start.values()))
    got = meta_gradient(task, task.initial(), data, Key(3), work=work, lr=LR, alpha=ALPHA)
    for name, wanted in zip(start, by_hand, strict=True):
        torch.testing.assert_close(got.gradients[name], wanted, rtol=1e-10, atol=1e-12)
        assert not got.gradients[name].requires_grad
    # Finite differences, along one direction.
    direction = {n: torch.randn(v.shape, generator=Key(4).torch(), dtype=v.dtype) for n, v in centre.items()}
    ends = []
    for sign in (1, -1):
        moved = {n: (v + sign * 1e-5 * direction[n]).requires_grad_() for n, v in centre.items()}
        ends.append(objective(task, moved, data, Key(3), work, centre).item())
    slope = sum((got.gradients[n] * direction[n]).sum().item() for n in direction)
    assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(slope, rel=1e-6)


def test_a_stack_gives_each_client_s_gradient_also_with_unequal_steps(in_stack, seeded, task_of, clients):
    task = task_of(seeded(net), "cross-entropy", (4,), 2)
    data = clients((13, 12, 9, 8, 3), (4,), 2, "cross-entropy")
    keys = KeyStack(tuple(Key(number) for number in range(5)))
    for work in (Work(steps=2, batch=4), Work(epochs=1, batch=4), Work(epochs=2)):
        options = {"work": work, "lr": LR, "alpha": ALPHA}
        stacked = in_stack(
            partial(meta_gradient, task, task.initial(), ClientStack.of(data), keys, **options), len(data)
        )
        for row, (own, key) in enumerate(zip(data, keys.keys, strict=True)):
            alone = meta_gradient(task, task.initial(), own, key, **options)
            assert float(stacked.step_sum[row]) == float(alone.step_sum) == pytest.approx(LR * work.count(len(own)))
            torch.testing.assert_close(stacked.loss[row], alone.loss)
            for name, value in alone.gradients.items():
                torch.testing.assert_close(stacked.gradients[name][row], value, rtol=1e-10, atol=1e-12)


def test_on_a_quadratic_it_is_theta_2k_plus_1(seeded, task_of):
    """f = a/2 (x - c)^2 in one dimension: the gradient is (1 - gamma(a + alpha))^{2K} a (x - c)."""
    task = task_of(seeded(lambda: nn.Linear(1, 1, bias=False)), "half-squares", (1,), 1)
    x = task.initial()["weight"].item()
    a, c = 0.8, -0.5
    data = ClientData(torch.tensor([[a**0.5]], dtype=torch.float64), torch.tensor([a**0.5 * c], dtype=torch.float64))
    for steps in (1, 2, 5):
        got = meta_gradient(task, task.initial(), data, Key(0), work=Work(steps=steps), lr=LR, alpha=ALPHA)
        wanted = (1 - LR * (a + ALPHA)) ** (2 * steps) * a * (x - c)
        assert got.gradients["weight"].item() == pytest.approx(wanted, rel=1e-12)


def test_dropout_is_seeded_and_batch_norm_refused(seeded, task_of, clients):
    (data,) = clients((10,), (4,), 2, "cross-entropy")
    task = task_of(seeded(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))), "cross-entropy", (4,), 2)
    options = {"work": Work(steps=2), "lr": LR}
    state = torch.random.get_rng_state()
    results = [meta_gradient(task, task.initial(), data, Key(s), **options).gradients["1.weight"] for s in (0, 0, 1)]
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert torch.equal(state, torch.random.get_rng_state())
    normed = task_of(seeded(lambda: nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))), "cross-entropy", (4,), 2)
    with pytest.raises(UnsupportedError, match="BatchNorm"):
        meta_gradient(normed, normed.initial(), data, Key(0), **options)

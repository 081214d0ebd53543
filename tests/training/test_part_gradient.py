"""Gradients of some parameters of a stack: those of all, without the others being formed."""

import pytest
import torch
from torch import nn

from parley.core.key import Key
from parley.data import ClientData, Federation
from parley.study.train import make_task
from parley.training.batches import Work
from parley.training.dense import DenseGradient
from parley.training.gradients import StackGradient
from parley.training.stack import ClientStack, stack_batches


def test_parameters_that_stay_have_no_gradient():
    random = torch.Generator().manual_seed(0)
    clients = tuple(
        ClientData(torch.randn(5, 4, generator=random), torch.randint(3, (5,), generator=random)) for _ in range(2)
    )
    federation = Federation.from_arrays({str(i): client for i, client in enumerate(clients)})
    task = make_task(federation, nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), seed=0)
    start = task.initial()
    names = ["2.weight", "2.bias", "0.weight", "0.bias"]
    values = [start[name].expand(2, *start[name].shape).clone() for name in names]
    batches = stack_batches(ClientStack.of(clients), Work(steps=1).stacked([5, 5], [Key(), Key()]), values[0])
    whole = StackGradient(task, names, batches)
    everything, loss = whole(values, 0)
    for few in (StackGradient, DenseGradient):
        part, same = few(task, names, batches, values[2:])(values[:2], 0)
        assert len(part) == 2
        torch.testing.assert_close(same, loss)
        for ours, theirs in zip(part, everything[:2], strict=True):
            torch.testing.assert_close(ours, theirs)
    for client in range(2):  # and they are those of autograd
        leaves = {n: v[client].clone().requires_grad_() for n, v in zip(names, values, strict=True)}
        task.loss(task.apply(leaves, {}, clients[client].x), clients[client].y).mean().backward()
        torch.testing.assert_close(part[0][client], leaves["2.weight"].grad)


@pytest.mark.parametrize("moving", [["0.weight", "0.bias"], ["2.weight"], ["0.bias", "2.bias"]], ids=str)
def test_a_dense_step_moves_what_moves(moving):
    """x <- decay x - lr gradient + shift of some parameters, first layers, last ones or parts of both."""
    random = torch.Generator().manual_seed(0)
    clients = tuple(
        ClientData(torch.randn(5, 4, generator=random), torch.randint(3, (5,), generator=random)) for _ in range(2)
    )
    federation = Federation.from_arrays({str(i): client for i, client in enumerate(clients)})
    task = make_task(federation, nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), seed=0)
    start = task.initial()
    names = [*moving, *[name for name in start if name not in moving]]
    values = [start[name].expand(2, *start[name].shape).clone() for name in names]
    x, still = values[: len(moving)], values[len(moving) :]
    batches = stack_batches(ClientStack.of(clients), Work(steps=1).stacked([5, 5], [Key(), Key()]), values[0])
    gradients, loss = StackGradient(task, names, batches)(values, 0)
    shift = [torch.full_like(value, 0.25) for value in x]
    expected = [0.9 * value - 0.5 * g + 0.25 for value, g in zip(x, gradients, strict=False)]
    before = [value.clone() for value in still]
    torch.testing.assert_close(DenseGradient(task, names, batches, still).descend(x, 0, 0.5, 0.9, shift), loss)
    for ours, theirs in zip([*x, *still], [*expected, *before], strict=True):
        torch.testing.assert_close(ours, theirs)

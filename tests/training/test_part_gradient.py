"""Gradients of some parameters of a stack: those of all, without the others being formed."""

import torch
from torch import nn

from parley.core.key import Key
from parley.data import ClientData, Federation
from parley.study.train import make_task
from parley.training.batches import Work
from parley.training.gradients import PartGradient, StackGradient
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
    part, same = PartGradient(whole, values[2:])(values[:2], 0)
    assert len(part) == 2
    torch.testing.assert_close(same, loss)
    for ours, theirs in zip(part, everything[:2], strict=True):
        torch.testing.assert_close(ours, theirs)
    for client in range(2):  # and they are those of autograd
        leaves = {n: v[client].clone().requires_grad_() for n, v in zip(names, values, strict=True)}
        task.loss(task.apply(leaves, {}, clients[client].x), clients[client].y).mean().backward()
        torch.testing.assert_close(part[0][client], leaves["2.weight"].grad)

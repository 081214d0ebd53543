"""Samples that are loaded when they are first looked at."""

import torch

from parley.core.tree import aligned
from parley.data.client import ClientData, Unread


def test_the_first_look_may_be_inside_a_gradient() -> None:
    data = Unread(lambda: ClientData(aligned(torch.eye(3) * 2), torch.zeros(3)))
    gradient = torch.func.grad(lambda w: (data.x @ w).sum())(torch.ones(3))
    assert torch.equal(gradient, torch.full((3,), 2.0))
    assert data.x.data_ptr()

"""Functional gradients: what a weak learner is fitted to."""

from __future__ import annotations

import torch
from torch import Tensor

from parley.core.errors import InputError
from parley.training.task import Task


def functional_gradient(task: Task, f: Tensor, y: Tensor) -> Tensor:
    """grad R_i[f] at a client's samples: the derivative of each one's loss by the function's value there, [n, outputs].

    For cross-entropy softmax(f) - onehot(y) (Shen et al., (3)); y are class numbers or values.
    """
    if task.info.kind != "regression" and len(y) and not 0 <= int(y.min()) <= int(y.max()) < task.info.outputs:
        raise InputError(f"has the label {int(y.max())} or {int(y.min())} outside of 0 to {task.info.outputs - 1}.")
    with torch.enable_grad():
        at = f.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(task.loss(at, y).sum(), at)
    return gradient

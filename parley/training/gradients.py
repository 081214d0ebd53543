"""Gradients of the mean loss of a step's batch: of one client by autograd, of a stack through `torch.func`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from parley.core.tree import Tree
from parley.data import ClientData
from parley.training.batches import BatchPlan
from parley.training.stack import StackedBatches
from parley.training.task import Task


class Gradient(Protocol):
    """(parameters in order, step) -> gradients in the same order and the loss, [] for one client or [rows]."""

    def __call__(self, parameters: list[Tensor], step: int) -> tuple[list[Tensor], Tensor]: ...


class SoloGradient:
    """One client: the module itself, plain autograd; `still` are its parameters that do not move."""

    def __init__(
        self, task: Task, names: list[str], buffers: Tree, data: ClientData, plan: BatchPlan, still: Tree
    ) -> None:
        self.task, self.names, self.buffers, self.still = task, names, buffers, still
        x, y = data.x, data.y
        if plan.indices is not None:
            indices = plan.indices.to(x.device)
            x, y = x[indices], y[indices]
        if x.ndim == 4 and any(value.ndim == 4 for value in task.network.parameters()):
            x = x.contiguous(memory_format=torch.channels_last)  # as the weights of convolutions are laid out
        if plan.indices is None:
            self.batches = [(x, y)] * plan.steps
        else:
            self.batches = list(zip(x.split(plan.lengths), y.split(plan.lengths), strict=True))

    def __call__(self, parameters: list[Tensor], step: int) -> tuple[list[Tensor], Tensor]:
        x, y = self.batches[step]
        leaves = [parameter.detach().requires_grad_() for parameter in parameters]
        with torch.enable_grad():
            model = {**self.still, **dict(zip(self.names, leaves, strict=True))}
            loss = self.task.loss(self.task.apply(model, self.buffers, x), y).mean()
        # A parameter the forward pass does not use has the gradient zero, as it has in a stack.
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        return list(gradients), loss.detach()


class StackGradient:
    """Several clients at once, any module that `torch.func.vmap` can take.

    `still` are rows of the last of the named parameters, which do not move: no gradient is taken of them.
    """

    def __init__(self, task: Task, names: list[str], batches: StackedBatches, still: Sequence[Tensor] = ()) -> None:
        self.batches, self.still = batches, still

        def mean_loss(moving: list[Tensor], still: list[Tensor], x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
            outputs = task.apply(dict(zip(names, [*moving, *still], strict=True)), {}, x)
            return torch.dot(task.loss(outputs, y), weights)

        self.function = vmap(grad_and_value(mean_loss))

    def __call__(self, parameters: list[Tensor], step: int) -> tuple[list[Tensor], Tensor]:
        rows = len(parameters[0])
        still = [value[:rows] for value in self.still]
        gradients, loss = self.function(parameters, still, *self.batches(step, rows))
        return list(gradients), loss

"""Gradients of the mean loss of a step's batch: of one client by autograd, of a stack through `torch.func`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from parley.core.tree import Tree
from parley.data import ClientData
from parley.training.batches import Plan
from parley.training.stack import StackedBatches
from parley.training.task import Task


class Gradient(Protocol):
    """(parameters in order, step) -> gradients in the same order and the loss, [] for one client or [rows]."""

    def __call__(self, parameters: list[Tensor], step: int) -> tuple[list[Tensor], Tensor]: ...


class SoloGradient:
    """One client: the module itself, plain autograd; `still` are its parameters that do not move."""

    def __init__(self, task: Task, names: list[str], buffers: Tree, data: ClientData, plan: Plan, still: Tree) -> None:
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
    """Several clients at once, any module that `torch.func.vmap` can take."""

    def __init__(self, task: Task, names: list[str], batches: StackedBatches) -> None:
        self.batches = batches

        def mean_loss(moving: list[Tensor], still: list[Tensor], x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
            outputs = task.apply(dict(zip(names, [*moving, *still], strict=True)), {}, x)
            return torch.dot(task.loss(outputs, y), weights)

        self.function = vmap(grad_and_value(mean_loss))

    def __call__(
        self, parameters: list[Tensor], step: int, still: Sequence[Tensor] = ()
    ) -> tuple[list[Tensor], Tensor]:
        """Of `parameters`; `still` are rows of those after them, of which no gradient is taken."""
        gradients, loss = self.function(parameters, list(still), *self.batches(step, parameters[0].shape[0]))
        return list(gradients), loss


class PartGradient:
    """Several clients at once, some of whose parameters, the rows `still`, do not move."""

    def __init__(self, whole: Gradient, still: list[Tensor]) -> None:
        self.whole, self.still = whole, still

    def __call__(self, parameters: list[Tensor], step: int) -> tuple[list[Tensor], Tensor]:
        still = [value[: len(parameters[0])] for value in self.still]
        if isinstance(self.whole, StackGradient):
            return self.whole(parameters, step, still)
        gradients, loss = self.whole([*parameters, *still], step)
        return gradients[: len(parameters)], loss

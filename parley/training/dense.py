"""The fast path for stacks of plain dense networks: back-propagation written out as batched matrix products.

It gives what `StackGradient` gives, without autograd's and vmap's bookkeeping, and it can apply a plain SGD step while
the gradient is formed (`descend`), which saves writing the gradients of all clients to memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from parley.data import ClientData
from parley.models.spec import Step
from parley.training.losses import Loss, cross_entropy, half_squares, mse
from parley.training.stack import StackedBatches
from parley.training.task import Task

aten = torch.ops.aten


class DenseGradient:
    """A chain of linear layers and elementwise activations with a loss whose derivative is known.

    `still` are rows of the last of the named parameters, which do not move: no gradient is taken of them.
    """

    def __init__(self, task: Task, names: list[str], batches: StackedBatches, still: Sequence[Tensor] = ()) -> None:
        steps = task.traits.dense
        assert steps is not None
        self.loss, self.batches = task.loss, batches
        self.steps = [step for step in steps if step.kind not in ("flatten", "identity")]
        self.index = {name: index for index, name in enumerate(names)}
        self.still, self.moving = still, set(names[: len(names) - len(still)])
        self.first = next(i for i, layer in enumerate(self.steps) if {layer.weight, layer.bias} & self.moving)
        self.minus_one = batches.weights.new_full((1, 1, 1), -1.0)

    @staticmethod
    def applies(task: Task, data: ClientData) -> bool:
        """Whether such samples can be trained on here: vectors (or flattened) in, a class number or a vector out."""
        chain = task.traits.dense
        if chain is None or not (data.x.ndim == 2 or chain[0].kind == "flatten"):
            return False
        if task.loss is cross_entropy:
            return data.y.ndim == 1 and data.y.dtype == torch.int64
        return task.loss in (half_squares, mse) and data.y.ndim <= 2

    def __call__(self, parameters: list[Tensor], step: int) -> tuple[list[Tensor], Tensor]:
        gradients = list(parameters)
        loss, layers = self._backward(parameters, step)
        for layer, delta, inputs in layers:
            if layer.weight in self.moving:
                gradients[self.index[layer.weight]] = torch.bmm(delta.mT, inputs)
            if layer.bias in self.moving:
                gradients[self.index[layer.bias]] = delta.sum(1)
        return gradients, loss

    def descend(
        self, parameters: list[Tensor], step: int, lr: float, decay: float = 1.0, shift: list[Tensor] | None = None
    ) -> Tensor:
        """x <- decay x - lr gradient + shift on all clients, in place; returns the losses before it."""
        loss, layers = self._backward(parameters, step)
        for layer, delta, inputs in layers:
            if layer.weight in self.moving:
                name = self.index[layer.weight]
                parameters[name].baddbmm_(delta.mT, inputs, beta=decay, alpha=-lr)
                if shift is not None:
                    parameters[name].add_(shift[name])
            if layer.bias in self.moving:
                name = self.index[layer.bias]
                bias = parameters[name] if decay == 1 else parameters[name].mul_(decay)
                bias.sub_(delta.sum(1), alpha=lr)
                if shift is not None:
                    bias.add_(shift[name])
        return loss

    def _backward(self, parameters: list[Tensor], step: int) -> tuple[Tensor, Iterator[tuple[Step, Tensor, Tensor]]]:
        """The losses and, per linear layer from the last to the first, (layer, d loss / d its output, its input)."""
        x, y, weights = self.batches(step, rows := parameters[0].shape[0])
        parameters = [*parameters, *[value[:rows] for value in self.still]]
        values = [x if x.ndim == 3 else x.flatten(2)]
        for layer in self.steps:
            values.append(self._forward(layer, values[-1], parameters))
        loss, delta = _loss_and_derivative(self.loss, values[-1], y, weights, self.minus_one)
        return loss, self._layers(parameters, values, delta)

    def _layers(
        self, parameters: list[Tensor], values: list[Tensor], delta: Tensor
    ) -> Iterator[tuple[Step, Tensor, Tensor]]:
        """The derivative below a layer is formed before it is handed out, so its weights may be changed then."""
        for index in range(len(self.steps) - 1, self.first - 1, -1):
            layer, inputs, outputs = self.steps[index], values[index], values[index + 1]
            if layer.kind != "linear":
                delta = _activation_backward(layer, delta, inputs, outputs)
                continue
            below = torch.bmm(delta, parameters[self.index[str(layer.weight)]]) if index > self.first else delta
            yield layer, delta, inputs
            delta = below

    def _forward(self, layer: Step, inputs: Tensor, parameters: list[Tensor]) -> Tensor:
        if layer.kind != "linear":
            return _activation(layer, inputs)
        weight = parameters[self.index[str(layer.weight)]]
        if layer.bias is None:
            return torch.bmm(inputs, weight.mT)
        return torch.baddbmm(parameters[self.index[layer.bias]].unsqueeze(1), inputs, weight.mT)


def _loss_and_derivative(
    loss: Loss, outputs: Tensor, y: Tensor, weights: Tensor, minus_one: Tensor
) -> tuple[Tensor, Tensor]:
    """Weighted loss per client [S] and its derivative in the outputs [S, B, C]."""
    if loss is cross_entropy:
        # For few classes these passes take a quarter of the time of torch.log_softmax and exp.
        targets, shares = y.unsqueeze(-1), weights.unsqueeze(-1)
        delta = outputs - outputs.amax(-1, keepdim=True)
        target_logits = delta.gather(-1, targets)
        total = delta.exp_().sum(-1, keepdim=True)
        delta.div_(total).scatter_add_(-1, targets, minus_one.expand_as(targets))
        return total.log_().sub_(target_logits).mul_(shares).sum((1, 2)), delta.mul_(shares)
    difference = outputs - y.view_as(outputs)
    factor = 1.0 if loss is half_squares else 2.0 / outputs.shape[-1]
    value = (difference.square().sum(-1) * weights).sum(1) * (factor / 2)
    return value, difference.mul_(weights.unsqueeze(-1) * factor)


def _activation(layer: Step, x: Tensor) -> Tensor:
    match layer.kind:
        case "relu":
            return torch.relu(x)
        case "tanh":
            return torch.tanh(x)
        case "sigmoid":
            return torch.sigmoid(x)
        case "leaky_relu":
            return torch.nn.functional.leaky_relu(x, layer.slope)
        case _:
            return torch.nn.functional.gelu(x, approximate=layer.approximate)


def _activation_backward(layer: Step, delta: Tensor, x: Tensor, out: Tensor) -> Tensor:
    match layer.kind:
        case "relu":
            result: Tensor = aten.threshold_backward(delta, out, 0)
        case "tanh":
            result = aten.tanh_backward(delta, out)
        case "sigmoid":
            result = aten.sigmoid_backward(delta, out)
        case "leaky_relu":
            result = aten.leaky_relu_backward(delta, x, layer.slope, False)
        case _:
            result = aten.gelu_backward(delta, x, approximate=layer.approximate)
    return result

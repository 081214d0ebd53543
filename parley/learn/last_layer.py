"""A network as a linear map on features: f(x) = W phi(x) + b, with phi what its last dense layer receives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from parley.core.errors import InputError
from parley.learn.task import Predictor, Task
from parley.models.layers import layers

CHUNK = 512
"""Samples whose features are computed at once."""


@dataclass(frozen=True)
class LastLayer:
    """The last dense layer of a network, by the names of its tensors."""

    path: str
    weight: str
    """Name of W, [outputs, inputs]."""
    bias: str | None
    """Name of b, [outputs], None without one."""
    inputs: int


def last_layer(module: nn.Module) -> LastLayer:
    """The dense layer that is defined last, which must be trainable."""
    found = [(path, layer) for path, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not found or not found[-1][1].weight.requires_grad:
        raise InputError(f"the model {type(module).__name__} has no dense layer at its end that can be trained.")
    path, layer = found[-1]
    prefix = f"{path}." if path else ""
    bias = None if layer.bias is None else f"{prefix}bias"
    return LastLayer(path, f"{prefix}weight", bias, layer.in_features)


def representation(task: Task, predict: Predictor, x: Tensor) -> Tensor:
    """What enters the network's last layer while `predict` runs it on these inputs, [n, features].

    `predict` decides which weights the network has, and whether gradients are needed: `task.predictor(weights)`, or
    `lambda x: task.apply(weights, buffers, x)` within training. Of a trained model: `run.representation(x)`.
    """
    network = task.network
    path = layers(network)[-1].parameters[0].rpartition(".")[0]
    with _entering(network, path) as received:
        predict(x)
    if not received:
        raise InputError(f"the last layer of the model {type(network).__name__} was not called, so nothing entered it.")
    together = received[-1] if len(received[-1]) == len(x) else torch.cat(received)  # `predict` may take some at a time
    return together.flatten(1)


@contextmanager
def _entering(module: nn.Module, path: str) -> Iterator[list[Tensor]]:
    """What enters the layer at `path`, call by call, while the block runs."""
    received: list[Tensor] = []
    hook = module.get_submodule(path).register_forward_pre_hook(lambda _, inputs: received.append(inputs[0]))
    try:
        yield received
    finally:
        hook.remove()


@torch.no_grad()
def features(task: Task, x: Tensor) -> Tensor:
    """phi(x) of the network as it begins, in evaluation mode and float64, [n, d].

    In float64 a sample's features depend on the others it is computed with by rounding of 1e-16 only.
    """
    module = task.network
    layer = last_layer(module)
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    given = {name: value.double() for name, value in own.items() if _narrow(value)}
    W, b = own[layer.weight].double(), None if layer.bias is None else own[layer.bias].double()
    found: list[Tensor] = []
    training = module.training
    module.eval()
    try:
        for part in x.split(CHUNK):
            with _entering(module, layer.path) as received:
                outputs = functional_call(module, given, (part.double() if _narrow(part) else part,))
            shapes = [tuple(phi.shape) for phi in received]
            if shapes != [(len(part), layer.inputs)] or not torch.allclose(outputs, F.linear(received[0], W, b)):
                raise InputError(
                    f"the outputs of the model {type(module).__name__} are not those of one dense layer at its end, "
                    "applied to one vector a sample; choose another model."
                )
            found += received
    finally:
        module.train(training)
    return torch.cat(found)


def _narrow(value: Tensor) -> bool:
    return value.is_floating_point() and value.dtype != torch.float64

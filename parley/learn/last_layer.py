"""A network as a linear map on features: f(x) = W phi(x) + b, with phi what its last dense layer receives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from parley.core.errors import InputError
from parley.learn.task import Task

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
    received: list[Tensor] = []
    found: list[Tensor] = []
    hook = module.get_submodule(layer.path).register_forward_pre_hook(lambda _, inputs: received.append(inputs[0]))
    training = module.training
    module.eval()
    try:
        for part in x.split(CHUNK):
            outputs = functional_call(module, given, (part.double() if _narrow(part) else part,))
            shapes = [tuple(phi.shape) for phi in received]
            if shapes != [(len(part), layer.inputs)] or not torch.allclose(outputs, F.linear(received[0], W, b)):
                raise InputError(
                    f"the outputs of the model {type(module).__name__} are not those of one dense layer at its end, "
                    "applied to one vector a sample; choose another model."
                )
            found.append(received.pop())
    finally:
        hook.remove()
        module.train(training)
    return torch.cat(found)


def _narrow(value: Tensor) -> bool:
    return value.is_floating_point() and value.dtype != torch.float64

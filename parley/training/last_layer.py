"""A network as a linear map on features: f(x) = W phi(x) + b, with phi what its last dense layer receives."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from parley.core.errors import InputError
from parley.core.tree import Tree
from parley.data import ClientData
from parley.models.layers import layers
from parley.models.structure import traits
from parley.training.stack import ClientStack, Data, outside, rows, shared
from parley.training.task import Predictor, Task

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
    layers = [(path, layer) for path, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not layers or not layers[-1][1].weight.requires_grad:
        raise InputError(f"the model {type(module).__name__} has no dense layer at its end that can be trained.")
    path, layer = layers[-1]
    prefix = f"{path}." if path else ""
    bias = None if layer.bias is None else f"{prefix}bias"
    return LastLayer(path, f"{prefix}weight", bias, layer.in_features)


def representation(task: Task, predict: Predictor, x: Tensor) -> Tensor:
    """What enters the network's last layer while `predict` runs it on these inputs, [n, features].

    `predict` decides which weights the network has, and whether gradients are needed: `task.predictor(weights)`, or
    `lambda x: task.apply(weights, buffers, x)` within training. Of a trained model: `run.representation(x)`.
    """
    network = task.network
    with _entering(network, last_path(network)) as received:
        predict(x)
    if not received:
        raise InputError(f"the last layer of the model {type(network).__name__} was not called, so nothing entered it.")
    together = received[-1] if len(received[-1]) == len(x) else torch.cat(received)  # `predict` may take some at a time
    return together.flatten(1)


@lru_cache(maxsize=16)
def last_path(module: nn.Module) -> str:
    """Where a module has its last layer."""
    return layers(module)[-1].parameters[0].rpartition(".")[0]


@lru_cache(maxsize=16)
def cut(module: nn.Module, head: tuple[str, ...]) -> tuple[nn.Sequential, nn.Sequential] | None:
    """A chain in two, the second beginning where the parameters `head` do; None where it cannot be cut.

    What the first half makes of a sample must follow from its weights alone: torch's own layers, no BatchNorm, no
    dropout. Both halves share the module's layers and have its names.
    """
    if type(module) is not nn.Sequential or _foreign(module):
        return None
    children = list(module._modules.items())  # `named_children` leaves out the second use of an activation
    owner = {name.partition(".")[0] for name in head}
    index = next((index for index, (name, _) in enumerate(children) if name in owner), 0)
    body, rest = (nn.Sequential(OrderedDict(part)) for part in (children[:index], children[index:]))
    if not list(body.parameters()) or {name for name, p in rest.named_parameters() if p.requires_grad} != set(head):
        return None
    known = traits(body)
    if known.has_batchnorm or known.has_randomness or any(_foreign(layer) for layer in body.modules()):
        return None
    return body, rest


def _foreign(layer: nn.Module) -> bool:
    """Whether a layer may do something else than its class in torch says."""
    hooked = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return bool(hooked) or not type(layer).__module__.startswith("torch.nn.modules.")


@torch.no_grad()
def passed_through(task: Task, body: nn.Sequential, weights: Tree, data: Data) -> tuple[Tensor, ...]:
    """What a half of the network makes of all samples of a client, or of each client of a stack."""
    given = {name: weights[name] for name, _ in body.named_parameters() if name in weights}
    half = replace(task, module=body)

    def through(parameters: Tree, x: Tensor) -> Tensor:
        parts = [half.apply(parameters, {}, part) for part in x.split(CHUNK)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    if isinstance(data, ClientData):
        return (through(given, data.x),)
    inputs, count = [client.x for client in clients_of(data)], len(data.sizes)
    with outside():
        if all(shared(value) for value in given.values()):
            parts: tuple[Tensor, ...] = through(given, data.joined().samples.x).split(data.sizes)
            return parts
        each = {name: rows(value, count) for name, value in given.items()}
        return tuple(through({n: v[i] for n, v in each.items()}, x) for i, x in enumerate(inputs))


def joined(data: Data) -> Data:
    """With the samples of a stack gathered, so that its clients' are parts of them and no copies."""
    return data if isinstance(data, ClientData) else data.joined()


def clients_of(data: Data) -> tuple[ClientData, ...]:
    """A client's samples, or those of each client of a stack."""
    return (data,) if isinstance(data, ClientData) else data.clients()


def replaced(data: Data, clients: tuple[ClientData, ...]) -> Data:
    """Other samples of the same client or stack."""
    return clients[0] if isinstance(data, ClientData) else ClientStack.of(clients)


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
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    given = {name: value.double() for name, value in tensors.items() if _narrow(value)}
    W, b = tensors[layer.weight].double(), None if layer.bias is None else tensors[layer.bias].double()
    received_parts: list[Tensor] = []
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
            received_parts += received
    finally:
        module.train(training)
    return torch.cat(received_parts)


def _narrow(value: Tensor) -> bool:
    return value.is_floating_point() and value.dtype != torch.float64

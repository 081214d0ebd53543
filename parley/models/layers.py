"""A module as layers in the order they are defined, each with its parameters and buffers.

What Gholami and Seferoglu count: a layer is a module with weights (a convolution, a dense layer, an embedding). The
normalisation after it belongs to it, parameters and statistics alike, and so does the convolution of a shortcut, which
runs beside layers and not after them. ResNet-20 has 20 layers. Of a transformer the blocks count (`blocks.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

_BESIDE = ("shortcut", "downsample")


@dataclass(frozen=True)
class Layer:
    """A layer's name (the common beginning of its parameters' names) and what belongs to it."""

    name: str
    parameters: tuple[str, ...]
    """Trainable parameters."""
    buffers: tuple[str, ...] = ()


@runtime_checkable
class Layered(Protocol):
    """A module that knows its layers better than the order of definition tells, such as a transformer's blocks."""

    def parley_layers(self) -> tuple[Layer, ...]: ...


def layers(module: nn.Module) -> tuple[Layer, ...]:
    """The layers; parameters that do not train and tensors listed twice are left out."""
    if isinstance(module, Layered):
        return module.parley_layers()
    trainable = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    buffers = {name for name, _ in module.named_buffers()}
    result: list[Layer] = []
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        direct = tuple(prefix + name for name, _ in part.named_parameters(recurse=False) if prefix + name in trainable)
        kept = tuple(prefix + name for name, _ in part.named_buffers(recurse=False) if prefix + name in buffers)
        if not direct and not kept:
            continue
        beside = any(name in path.split(".") for name in _BESIDE)
        if result and (_joins(part) or beside or not result[-1].parameters):
            last = result[-1]
            result[-1] = Layer(last.name, last.parameters + direct, last.buffers + kept)
        else:
            result.append(Layer(_common(path), direct, kept))
    return tuple(result)


def _joins(part: nn.Module) -> bool:
    """Normalisation, and whatever else has no matrix of weights."""
    norms = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    return isinstance(part, norms) or all(p.ndim < 2 for _, p in part.named_parameters(recurse=False))


def _common(path: str) -> str:
    """`blocks.0.first.conv` is the layer `blocks.0.first`: the convolution's own name says nothing."""
    head, _, last = path.rpartition(".")
    return head if last == "conv" else path or "model"

"""What the runtimes must know about a module before they run it: can it be stacked, is it a plain dense chain."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

Kind = Literal["flatten", "linear", "relu", "tanh", "sigmoid", "leaky_relu", "gelu", "identity"]

_KINDS: dict[type[nn.Module], Kind] = {
    nn.Flatten: "flatten",
    nn.Linear: "linear",
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    nn.LeakyReLU: "leaky_relu",
    nn.GELU: "gelu",
    nn.Identity: "identity",
}


@dataclass(frozen=True)
class Step:
    """One layer of a dense chain, with the names under which its tensors stand in the state dict."""

    kind: Kind
    weight: str | None = None
    """Name of the [out, in] matrix of a linear step."""
    bias: str | None = None
    """Name of the [out] vector of a linear step, None without one."""
    slope: float = 0.0
    """Slope of a leaky ReLU below zero."""
    approximate: str = "none"
    """GELU's approximation: 'none' or 'tanh'."""


@dataclass(frozen=True)
class Traits:
    """Facts about a module that can be read off its layers without running it."""

    has_batchnorm: bool
    """Training updates persistent buffers (running statistics); layers of unknown classes that hold any count too."""
    has_randomness: bool
    """The forward pass draws random numbers in training; seen in layers only (torch's, and those with a true attribute
    `draws`), not in a hand-written `F.dropout`."""
    dense: tuple[Step, ...] | None
    """The steps in order if the module is a plain chain of dense layers, all of them trainable, else None. A chain
    that does not flatten before its first linear step is dense on one-dimensional samples only."""
    recurrent: bool
    """Has RNN, LSTM or GRU layers (which torch.func stacks only through a slow fallback that warns)."""


def traits(module: nn.Module) -> Traits:
    """Read a module's traits off its layers."""
    layers = list(module.modules())
    return Traits(
        has_batchnorm=any(True for _ in updated_buffers(module)),
        has_randomness=any(_draws(layer) for layer in layers),
        dense=_dense_chain(module),
        recurrent=any(isinstance(layer, nn.RNNBase | nn.RNNCellBase) for layer in layers),
    )


def updated_buffers(module: nn.Module) -> Iterator[str]:
    """Names of the persistent buffers that a training step changes or, in classes foreign to torch, may change."""
    persistent = module.state_dict(keep_vars=True).keys()
    for prefix, layer in module.named_modules():
        foreign = not type(layer).__module__.startswith("torch.")
        power_iteration = type(layer).__name__ == "_SpectralNorm"
        if isinstance(layer, _NormBase) or foreign or power_iteration:
            for name, _ in layer.named_buffers(prefix, recurse=False):
                if name in persistent:
                    yield name


def _draws(layer: nn.Module) -> bool:
    match layer:
        case _DropoutNd():
            return bool(layer.p > 0)
        case nn.RNNBase():
            return layer.dropout > 0 and layer.num_layers > 1
        case nn.MultiheadAttention():
            return bool(layer.dropout > 0)
        case nn.RReLU():
            return bool(layer.lower != layer.upper)
        case _:
            return isinstance(layer, nn.FractionalMaxPool2d | nn.FractionalMaxPool3d) or getattr(layer, "draws", False)


def _dense_chain(module: nn.Module) -> tuple[Step, ...] | None:
    leaves = list(_leaves(module, ""))
    steps = tuple(_step(name, leaf) for name, leaf in leaves)
    names = [name for step in steps if step is not None for name in (step.weight, step.bias) if name is not None]
    # A tensor shared by two layers appears once in named_parameters and has to be trained as one.
    trainable = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    if None in steps or set(names) != trainable or not names:
        return None
    chain = tuple(step for step in steps if step is not None)
    kinds = [step.kind for step in chain]
    return None if "flatten" in kinds[kinds.index("linear") :] else chain


def _leaves(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential and not _hooked(module):
        # Not named_children(): it would skip the second use of a shared activation.
        for name, child in zip(module._modules, module, strict=True):
            yield from _leaves(child, f"{prefix}{name}.")
    else:
        yield prefix, module


def _step(prefix: str, leaf: nn.Module) -> Step | None:
    """The step a leaf is, or None; subclasses and hooked layers may do anything, so only the plain classes count."""
    kind = _KINDS.get(type(leaf))
    if kind is None or _hooked(leaf):
        return None
    match leaf:
        case nn.Flatten():
            return Step(kind) if (leaf.start_dim, leaf.end_dim) == (1, -1) else None
        case nn.Linear():
            return Step(kind, weight=f"{prefix}weight", bias=None if leaf.bias is None else f"{prefix}bias")
        case nn.LeakyReLU():
            return Step(kind, slope=leaf.negative_slope)
        case nn.GELU():
            return Step(kind, approximate=leaf.approximate)
        case _:
            return Step(kind)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)

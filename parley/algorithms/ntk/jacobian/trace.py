"""One pass through a module: its outputs, and for every layer what enters it and how the outputs depend on what leaves.

Any module with parameters of its own counts as a layer if it is called once with one tensor of n rows: its part of the
Jacobian then follows from the layer alone. Parameters without such a layer (called twice, shared, recurrent) are left
to `torch.func`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vjp, vmap
from torch.nn import functional as F

from parley.algorithms.ntk.jacobian.blocks import Outer, Rows
from parley.core.errors import InputError
from parley.core.tree import Tree
from parley.models.structure import traits

_SAMPLES = 16
"""Samples that `torch.func` takes at once."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What a layer was seen to do."""

    path: str
    part: nn.Module
    names: tuple[str, ...]
    """Its own trainable parameters, as the whole module names them."""
    a: Tensor
    """What entered, [n, ...]."""
    z: Tensor
    """What left, [n, ...], in the graph that leads to the outputs."""
    last: bool
    """What left is the network's output."""


def check_mode(module: nn.Module) -> None:
    """A Jacobian row belongs to one sample: no dropout, and no statistics of a batch."""
    mode = traits(module)
    if module.training and (mode.has_batchnorm or mode.has_randomness):
        what = "normalises with its batch" if mode.has_batchnorm else "drops units at random"
        raise InputError(
            f"a Jacobian is of the network as it predicts, but this one is in training mode and {what}: "
            "call its eval() first."
        )


def layers_of(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Path -> its own trainable parameters, of every part that has some to itself."""
    count = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    result: dict[str, tuple[str, ...]] = {}
    for path, part in module.named_modules():
        direct = [(f"{path}.{n}" if path else n, p) for n, p in part.named_parameters(recurse=False) if p.requires_grad]
        if direct and all(count[id(p)] == 1 for _, p in direct):
            result[path] = tuple(name for name, _ in direct)
    return result


def trainable(module: nn.Module) -> list[str]:
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


@contextmanager
def watched(module: nn.Module, names: Collection[str]) -> Iterator[list[tuple[str, nn.Module, Tensor, Tensor, Any]]]:
    """Within, calls of the layers that have some of these parameters are noted."""
    calls: list[tuple[str, nn.Module, Tensor, Tensor, Any]] = []
    hooks = []
    for path, parameters in layers_of(module).items():
        if not set(parameters) & set(names):
            continue

        def note(part: nn.Module, inputs: tuple[Any, ...], out: Any, path: str = path) -> Any:
            if len(inputs) != 1 or not isinstance(inputs[0], Tensor) or not isinstance(out, Tensor):
                calls.append((path, part, torch.empty(0), torch.empty(0), None))
                return out
            if not out.requires_grad:
                out.requires_grad_()
            passed = out.clone()  # what follows may work in place
            calls.append((path, part, inputs[0], out, passed))
            return passed

        hooks.append(module.get_submodule(path).register_forward_hook(note))
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def run(
    module: nn.Module, weights: Mapping[str, Tensor], x: Tensor, names: Collection[str]
) -> tuple[Tensor, list[Seen]]:
    """The outputs [n, outputs] in a graph, and the layers with parameters among `names`."""
    check_mode(module)
    layers = layers_of(module)
    with watched(module, names) as calls, torch.enable_grad():
        outputs = functional_call(module, {n: w.detach() for n, w in weights.items()}, (x,))
    if not isinstance(outputs, Tensor) or outputs.ndim > 2 or len(outputs) != len(x):
        raise InputError("a Jacobian is of modules that give each sample one vector of outputs, [n, outputs].")
    times = Counter(path for path, *_ in calls)
    seen = [
        Seen(path, part, layers[path], a.detach(), z, passed is outputs)
        for path, part, a, z, passed in calls
        if times[path] == 1 and a.ndim > 0 and len(a) == len(z) == len(x) and passed is not None
    ]
    return outputs.reshape(len(x), -1), seen


def sensitivities(outputs: Tensor, seen: list[Seen]) -> list[Tensor]:
    """d output_j / d z of each layer, [n, outputs, ...]."""
    n, many = outputs.shape
    inner = [layer.z for layer in seen if not layer.last]
    by_layer: list[list[Tensor]] = [[] for _ in inner]
    for j in range(many if inner else 0):
        grads = torch.autograd.grad(outputs[:, j].sum(), inner, retain_graph=j < many - 1, materialize_grads=True)
        for layer_grads, grad in zip(by_layer, grads, strict=True):
            layer_grads.append(grad)
    deltas = iter(by_layer)
    eye = torch.eye(many, dtype=outputs.dtype, device=outputs.device)
    return [
        eye.view(1, many, *layer.z.shape[1:]).expand(n, many, *layer.z.shape[1:])
        if layer.last
        else torch.stack(next(deltas), 1)
        for layer in seen
    ]


def block_of(layer: Seen, delta: Tensor, weights: Mapping[str, Tensor]) -> Outer | Rows:
    """A layer's part of the Jacobian."""
    part, n, many = layer.part, len(layer.a), delta.shape[1]
    if type(part) is nn.Linear and len(layer.names) == len(list(part.parameters())):
        a = layer.a.reshape(n, -1, part.in_features)
        return _smaller(layer, a, delta.reshape(n, many, -1, part.out_features))
    if type(part) is nn.Conv2d and part.groups == 1 and len(layer.names) == len(list(part.parameters())):
        a = _patches(part, layer.a).transpose(1, 2)
        return _smaller(layer, a, delta.flatten(3).transpose(2, 3))
    return Rows.of(_by_layer(layer, delta, weights))


def _smaller(layer: Seen, a: Tensor, delta: Tensor) -> Outer | Rows:
    """As factors, unless their Gram matrices over all pairs of positions cost more than those of the rows."""
    positions, width = a.shape[1:]
    outputs, out = delta.shape[1], delta.shape[3]
    weight = next(name for name in layer.names if name.endswith("weight"))
    bias = next((name for name in layer.names if name.endswith("bias")), None)
    outer = Outer(
        weight, bias, tuple(layer.part.get_parameter("weight").shape), a, delta, layer.last and positions == 1
    )
    pairs, rows = positions**2 * (width + outputs * out), outputs * out * width
    return outer if positions == 1 or pairs < rows else Rows.of(outer.rows())


def _patches(conv: nn.Conv2d, a: Tensor) -> Tensor:
    """What each position of a convolution's output sees, [n, in, positions]."""
    if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        a = F.pad(a, conv._reversed_padding_repeated_twice, mode=mode)
        return F.unfold(a, conv.kernel_size, conv.dilation, 0, conv.stride)
    return F.unfold(a, conv.kernel_size, conv.dilation, conv.padding, conv.stride)


def _by_layer(layer: Seen, delta: Tensor, weights: Mapping[str, Tensor]) -> Tree:
    """Rows by back-propagation through the layer alone, for every sample."""
    prefix = f"{layer.path}." if layer.path else ""
    cut = len(prefix)
    inside = {name[cut:]: value for name, value in weights.items() if name.startswith(prefix)}
    parameters = {name[cut:]: weights[name].detach() for name in layer.names}

    def rows(a: Tensor, deltas: Tensor) -> Tree:
        def forward(p: Tree) -> Tensor:
            out: Tensor = functional_call(layer.part, {**inside, **p}, (a.unsqueeze(0),))
            return out.squeeze(0)

        pull = vjp(forward, parameters)[1]
        return vmap(lambda d: pull(d)[0])(deltas)  # type: ignore[no-any-return]

    result = vmap(rows, chunk_size=_SAMPLES)(layer.a, delta)
    return {name: result[name[cut:]] for name in layer.names}


def rest_of(module: nn.Module, weights: Mapping[str, Tensor], x: Tensor, names: Collection[str]) -> Rows:
    """The rows of any parameters, by `torch.func` a few samples at a time, or sample by sample where it cannot."""
    chosen = {name: weights[name].detach() for name in names}
    given = {name: value.detach() for name, value in weights.items()}

    def forward(p: Tree, sample: Tensor) -> Tensor:
        out: Tensor = functional_call(module, {**given, **p}, (sample.unsqueeze(0),))
        return out.reshape(-1)

    if not traits(module).recurrent:
        return Rows.of(vmap(jacrev(forward), (None, 0), chunk_size=_SAMPLES)(chosen, x))
    rows: list[Tree] = []
    for sample in x:
        tracked = {name: value.clone().requires_grad_() for name, value in chosen.items()}
        with torch.enable_grad():
            f = forward(tracked, sample)
        grads = [torch.autograd.grad(value, list(tracked.values()), retain_graph=True) for value in f]
        rows.append({name: torch.stack([g[k] for g in grads]) for k, name in enumerate(tracked)})
    return Rows.of({name: torch.stack([row[name] for row in rows]) for name in chosen})

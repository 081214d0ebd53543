"""A transformer as layers: its blocks, and the head behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from parley.models.layers import Layer


def block_layers(module: nn.Module, example: Tensor) -> tuple[Layer, ...]:
    """Each block of the longest list of modules is a layer; what runs before them belongs to the first one.

    What runs behind the last block is one more layer, the head. A tensor that is used in two places, such as an
    embedding tied to the output, belongs where it is used first. The order is that of a forward pass of `example`;
    what does not run in it is counted with the head.
    """
    path, blocks = max(
        ((path, part) for path, part in module.named_modules() if isinstance(part, nn.ModuleList)),
        key=lambda block: len(block[1]),
        default=("", nn.ModuleList()),
    )
    stages = _first_uses(module, list(blocks), example)
    last = len(blocks)
    names = [f"{path}.{number}" for number in range(last)] + ["head"]
    parameters: list[list[str]] = [[] for _ in names]
    buffers: list[list[str]] = [[] for _ in names]
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            parameters[stages.get(parameter, last)].append(name)
    for name, buffer in module.named_buffers():
        buffers[stages.get(buffer, last)].append(name)
    made = (
        Layer(name, tuple(names_of), tuple(kept))
        for name, names_of, kept in zip(names, parameters, buffers, strict=True)
    )
    return tuple(layer for layer in made if layer.parameters or layer.buffers)


@torch.no_grad()
def _first_uses(module: nn.Module, blocks: list[nn.Module], example: Tensor) -> dict[Tensor, int]:
    """The number of the block in which, or before which, each tensor is used first; behind them all, their count."""
    stages: dict[Tensor, int] = {}
    now = 0

    def enters(number: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            nonlocal now
            now = number

        return hook

    def uses(part: nn.Module, _: Any) -> None:
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            stages.setdefault(tensor, now)

    handles = [block.register_forward_pre_hook(enters(number)) for number, block in enumerate(blocks)]
    handles += [part.register_forward_pre_hook(uses) for part in module.modules()]
    handles += [block.register_forward_hook(enters(number + 1)) for number, block in enumerate(blocks)]
    training = module.training
    module.eval()
    try:
        module(example)
    finally:
        module.train(training)
        for handle in handles:
            handle.remove()
    return stages

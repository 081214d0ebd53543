"""Parts of a model that are averaged at their own pace: chosen by layers, by patterns of names or by a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal, TypeVar

from torch import nn

from parley.core.errors import InputError
from parley.core.tree import Tree
from parley.models.layers import Layer, layers

T = TypeVar("T")

NEVER = 0
"""The period of a part that is never averaged."""
Period = int | Literal["never"]


@dataclass(frozen=True)
class Part:
    """Parameters and buffers that are averaged together, every `period` rounds (or NEVER)."""

    label: str
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    period: int


@lru_cache(maxsize=16)
def chosen_parts(
    module: nn.Module,
    periods: tuple[tuple[str, Period], ...],
    split: Callable[[str], int] | None,
    each: bool,
    count: int | None,
    alpha: Period,
) -> tuple[Part, ...]:
    """By patterns, by a function, every layer, or by layers: the first that is given."""
    if periods:
        return by_patterns(module, {pattern: _number(period) for pattern, period in periods})
    if split is not None:
        return by_function(module, split)
    return each_layer(module) if each else by_layers(module, count, _number(alpha))


def _number(period: Period) -> int:
    return NEVER if isinstance(period, str) else period


def by_layers(module: nn.Module, count: int | None, period: int) -> tuple[Part, ...]:
    """The first `count` layers as `phi` with this period, the rest as `h` with period 1; default: all but the last."""
    in_order = layers(module)
    count = len(in_order) - 1 if count is None else count
    if not 0 <= count <= len(in_order):
        raise InputError(f"layers must lie between 0 and {len(in_order)}, the layers of the model, not {count}.")
    names = {name for layer in in_order[:count] for name in layer.parameters}
    return _grouped(module, in_order, lambda name: ("phi", period) if name in names else ("h", 1))


@lru_cache(maxsize=16)
def body_and_head(module: nn.Module, count: int | None) -> tuple[Part, Part]:
    """The first `count` layers, by default all but the last, and the others; there must be some of both."""
    parts = {part.label: part for part in by_layers(module, count, 1)}
    if len(parts) < 2:
        raise InputError(
            f"a body and a head need at least one layer each, and the model has {len(layers(module))}: choose another "
            "model, or set layers."
        )
    return parts["phi"], parts["h"]


def each_layer(module: nn.Module) -> tuple[Part, ...]:
    """Every layer a part."""
    in_order = layers(module)
    owner = {name: layer.name for layer in in_order for name in layer.parameters}
    return _grouped(module, in_order, lambda name: (owner[name], 1))


def by_patterns(module: nn.Module, periods: Mapping[str, int]) -> tuple[Part, ...]:
    """A part for each shell pattern of parameter names, the first that fits; what fits none is averaged every round."""
    used: set[str] = set()

    def choose(name: str) -> tuple[str, int]:
        pattern = next((pattern for pattern in periods if fnmatchcase(name, pattern)), None)
        used.add(pattern or "")
        return ("rest", 1) if pattern is None else (pattern, periods[pattern])

    parts = _grouped(module, layers(module), choose)
    for pattern in periods:
        if pattern not in used:
            first = next((n for n, p in module.named_parameters() if p.requires_grad), "")
            raise InputError(f"periods: no parameter is left for '{pattern}'; their names are like '{first}'.")
    return parts


def by_function(module: nn.Module, split: Callable[[str], int]) -> tuple[Part, ...]:
    """A part for each period that `split` gives a parameter's name."""

    def choose(name: str) -> tuple[str, int]:
        period = split(name)
        if not isinstance(period, int) or period < 1:
            raise InputError(f"split must give a period of at least 1 for parameter '{name}', not {period!r}.")
        return f"every {period}", period

    return _grouped(module, layers(module), choose)


def _grouped(module: nn.Module, layers: Sequence[Layer], choose: Callable[[str], tuple[str, int]]) -> tuple[Part, ...]:
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    chosen = {name: choose(name) for name in names}
    home: dict[str, tuple[str, int]] = {}
    beside = {name.rpartition(".")[0]: name for name in names}
    for layer in layers:
        for buffer in layer.buffers:
            # A statistic goes with the scale and shift of its own normalisation, else with its layer.
            near = beside.get(buffer.rpartition(".")[0]) or next(iter(layer.parameters or names))
            home[buffer] = chosen[near]
    parts = []
    for key in dict.fromkeys(chosen.values()):
        members = tuple(name for name in names if chosen[name] == key)
        parts.append(Part(key[0], members, tuple(b for b, where in home.items() if where == key), key[1]))
    return tuple(parts)


def parameters_of(tree: dict[str, T], parts: Sequence[Part]) -> dict[str, T]:
    return {name: tree[name] for part in parts for name in part.parameters if name in tree}


def buffers_of(tree: dict[str, T], parts: Sequence[Part]) -> dict[str, T]:
    return {name: tree[name] for part in parts for name in part.buffers if name in tree}


def merged(names: Iterable[str], memory: Tree, received: Tree) -> Tree:
    """What was received over what is remembered, in the order of the model's parameters."""
    tree = memory | received
    missing = next((name for name in names if name not in tree), None)
    if missing is not None:
        raise InputError(f"this client has lost its part of the model with '{missing}'; it can go on after an average.")
    return {name: tree[name] for name in names}

"""Trees: flat dictionaries of tensors, and the few operations on them that every room needs.

Trees are values: functions return new ones and nothing that has been put into a state, memory or message is changed
in place afterwards. Checkpoints rely on it (a tensor that is the same object need not be written again).
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

Tree = dict[str, Tensor]
Schema = tuple[tuple[str, torch.dtype, torch.Size], ...]


def zeros_like(tree: Tree) -> Tree:
    return {name: torch.zeros_like(value) for name, value in tree.items()}


def detach(tree: Tree) -> Tree:
    return {name: value.detach() for name, value in tree.items()}


def clone(tree: Tree) -> Tree:
    return {name: value.detach().clone() for name, value in tree.items()}


def add(a: Tree, b: Tree, scale: float = 1.0) -> Tree:
    """a + scale * b, over the names of a."""
    return {name: torch.add(value, b[name], alpha=scale) for name, value in a.items()}


def subtract(a: Tree, b: Tree) -> Tree:
    return {name: value - b[name] for name, value in a.items()}


def scale(tree: Tree, factor: float) -> Tree:
    return {name: value * factor for name, value in tree.items()}


def weighted_sum(trees: Iterable[Tree], weights: Sequence[float]) -> Tree:
    """sum_i weights[i] * trees[i], folded in the order given (so that every runtime gives the same bits).

    Integer tensors (counters among a model's buffers) cannot be averaged: the largest is kept.
    """
    floats: dict[str, Tensor] = {}
    integers: dict[str, Tensor] = {}
    for tree, weight in zip(trees, weights, strict=True):
        if not floats and not integers:
            floats = {n: v * weight for n, v in tree.items() if v.is_floating_point()}
            integers = {n: v for n, v in tree.items() if not v.is_floating_point()}
            order = list(tree)
            continue
        if floats:
            torch._foreach_add_(list(floats.values()), [tree[n] for n in floats], alpha=weight)
        for name, value in integers.items():
            integers[name] = torch.maximum(value, tree[name])
    return {n: floats[n] if n in floats else integers[n] for n in order} if floats or integers else {}


def is_finite(tree: Tree) -> bool:
    """Whether no floating-point entry is NaN or infinite."""
    floats = [value for value in tree.values() if value.is_floating_point() and value.numel()]
    if not floats:
        return True
    if any(value.dtype != floats[0].dtype for value in floats):
        return all(bool(torch.isfinite(value).all()) for value in floats)
    return bool(torch.isfinite(torch.stack(torch._foreach_norm(floats, float("inf")))).all())


def norm(tree: Tree) -> Tensor:
    """The Euclidean norm of all entries together."""
    return torch.stack([value.double().square().sum() for value in tree.values()]).sum().sqrt()


def schema(tree: Tree) -> Schema:
    """Names, dtypes and shapes: what must agree for two trees to be added."""
    return tuple([(name, value.dtype, value.shape) for name, value in tree.items()])


def nbytes(tree: Tree) -> int:
    return sum(value.numel() * value.element_size() for value in tree.values())

"""Trees: flat dictionaries of tensors, and the few operations on them that every room needs.

Trees are values: functions return new ones and nothing that has been put into a state, memory or message is changed
in place afterwards. Checkpoints rely on it (a tensor that is the same object need not be written again).
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "Schema",
    "Tree",
    "add",
    "aligned",
    "clone",
    "detach",
    "flat",
    "is_finite",
    "nbytes",
    "norm",
    "plain_sum",
    "scale",
    "schema",
    "subtract",
    "weighted_sum",
    "zeros_like",
]

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


def scale(tree: Tree, factor: float | Tensor) -> Tree:
    """`tree` times a number, which may be a tensor []; dtypes stay."""
    return {name: (value * factor).to(value.dtype) for name, value in tree.items()}


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


def stacked_sum(stacks: Sequence[tuple[Tree, Sequence[int], Sequence[float] | None]]) -> Tree:
    """`weighted_sum` over rows of stacks, given with their weights, or `plain_sum` without: to rounding the same."""
    total: Tree = {}
    for tree, rows, weights in stacks:
        for name, value in tree.items():
            chosen = value if len(rows) == len(value) else value[list(rows)]
            if weights is None:
                term = chosen.sum(0, dtype=chosen.dtype)
            elif chosen.is_floating_point():
                factors = torch.tensor(weights, dtype=torch.float64).to(chosen)
                term = (factors @ chosen.reshape(len(chosen), -1)).view(chosen.shape[1:])
            else:
                term = chosen.amax(0)
            before = total.get(name)
            if before is None:
                total[name] = term
            elif weights is None or term.is_floating_point():
                total[name] = before + term
            else:
                total[name] = torch.maximum(before, term)
    return total


def plain_sum(trees: Iterable[Tree]) -> Tree:
    """sum_i trees[i], folded in the order given; dtypes stay, so whole numbers are added exactly."""
    total: Tree = {}
    for tree in trees:
        if not total:
            total = clone(tree)
        else:
            for name, value in total.items():
                value.add_(tree[name])
    return total


def aligned(value: Tensor) -> Tensor:
    """`value`, copied unless it lies in one piece on a boundary of 64 bytes, as what torch allocates does.

    Matrix products round differently where memory is not aligned, so the same numbers would not give the same bits.
    """
    if not value.is_contiguous():
        return value.contiguous()
    return value if value.data_ptr() % 64 == 0 else value.clone()


def is_finite(tree: Tree) -> bool:
    """Whether no floating-point entry is NaN or infinite."""
    return all(_finite(value) for value in tree.values() if value.is_floating_point())


def _finite(value: Tensor) -> bool:
    """A sum shows NaN and infinity in one pass; where it overflows by itself, every entry is looked at."""
    return math.isfinite(value.sum().item()) or bool(torch.isfinite(value).all())


def norm(tree: Tree) -> Tensor:
    """The Euclidean norm of all entries together."""
    return torch.stack([value.double().square().sum() for value in tree.values()]).sum().sqrt()


def schema(tree: Tree) -> Schema:
    """Names, dtypes and shapes: what must agree for two trees to be added."""
    return tuple([(name, value.dtype, value.shape) for name, value in tree.items()])


def nbytes(tree: Tree) -> int:
    return sum(value.numel() * value.element_size() for value in tree.values())


def flat(tree: Tree) -> NDArray[np.float64]:
    """The entries of a tree of parameters one after the other, [d], in double precision."""
    return np.asarray(torch.cat([value.detach().double().reshape(-1) for value in tree.values()]).numpy(), np.float64)

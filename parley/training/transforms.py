"""Gradient transforms: what a method adds to plain local SGD, step by step, composed with `|`.

pull(x, 0.1)                       + 0.1 (w - x), FedProx
add(c) | add(c_i, -1.0)            + c - c_i, SCAFFOLD
per_batch(contrast, previous)      any function of the gradient, the parameters and the batch (MOON)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from parley.core.show import Brief
from parley.core.tree import Tree

__all__ = ["Batch", "GradientTransform", "Stage", "Tensors", "add", "per_batch", "pull"]

Tensors = list[Tensor]
"""Of all parameters, in the model's order; in a stack of clients with a leading client axis."""


@dataclass(frozen=True)
class Batch:
    """What a step sees besides the gradient."""

    x: Tensor
    y: Tensor
    step: int
    """From 0."""


@dataclass(frozen=True, repr=False)
class Stage(Brief):
    """One function of a transform and the trees that it carries."""

    function: Callable[..., Tensors]
    """(gradients, parameters, *carried) -> gradients, elementwise: it takes the rows of a stack at once."""
    trees: tuple[Tree, ...] = ()
    linear: tuple[float, tuple[float, ...]] | None = None
    """(s, (a_1, a_2, ...)) where the function adds s w + a_1 tree_1 + a_2 tree_2 + ...: a step may add it by itself."""
    sees_batch: bool = False
    """The function is (gradients, parameters, batch, *trees) -> gradients over trees, and works client by client."""


@dataclass(frozen=True, repr=False)
class GradientTransform(Brief):
    """Stages, each of which is given what the one before made of the gradients."""

    stages: tuple[Stage, ...] = ()

    def __or__(self, other: GradientTransform) -> GradientTransform:
        return GradientTransform(self.stages + other.stages)


def pull(centre: Tree, strength: float) -> GradientTransform:
    """+ strength (w - centre): the gradient of the proximal term strength/2 ||w - centre||^2."""

    def apply(g: Tensors, w: Tensors, c: Tensors) -> Tensors:
        return list(torch._foreach_add(g, torch._foreach_sub(w, c), alpha=strength))

    return GradientTransform((Stage(apply, (centre,), (strength, (-strength,))),))


def add(tree: Tree, scale: float = 1.0) -> GradientTransform:
    """+ scale * tree, the same at every step (a control variate)."""

    def apply(g: Tensors, w: Tensors, values: Tensors) -> Tensors:
        return list(torch._foreach_add(g, values, alpha=scale))

    return GradientTransform((Stage(apply, (tree,), (0.0, (scale,))),))


def per_batch(function: Callable[..., Tree], *trees: Tree) -> GradientTransform:
    """`function(gradients, parameters, batch, *trees)` -> gradients, all but the batch being trees.

    Each tree has a tensor for every parameter; what has other names the function may close over. It sees one client, so
    a method with it trains client by client.
    """
    return GradientTransform((Stage(function, trees, sees_batch=True),))  # type: ignore[arg-type]

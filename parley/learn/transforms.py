"""Gradient transforms: what a method adds to plain local SGD, elementwise, composed with `|`.

A transform sees the gradients and the local parameters of one step as lists of tensors in the order of the model's
parameters. In a stack of clients these have a leading client axis; trees a transform carries may have it (values of
each client's own, such as control variates) or not (values shared by all, such as the server's model).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from parley.core.tree import Tree

Apply = Callable[[list[Tensor], list[Tensor], int], list[Tensor]]


@dataclass(frozen=True)
class GradientTransform:
    """(gradients, parameters, step number from 0) -> gradients."""

    apply: Apply

    def __call__(self, gradients: list[Tensor], parameters: list[Tensor], step: int) -> list[Tensor]:
        return self.apply(gradients, parameters, step)

    def __or__(self, other: GradientTransform) -> GradientTransform:
        return GradientTransform(lambda g, x, k: other.apply(self.apply(g, x, k), x, k))


def align(value: Tensor, parameter: Tensor) -> Tensor:
    """`value` as it meets `parameter`: the rows of the clients still at work, or broadcast over them."""
    if value.ndim == 0 or value.ndim < parameter.ndim:
        return value
    return value[: parameter.shape[0]]


def pull(centre: Tree, strength: float) -> GradientTransform:
    """+ strength (x - centre): the gradient of the proximal term strength/2 ||x - centre||^2."""
    values = list(centre.values())

    def apply(g: list[Tensor], x: list[Tensor], step: int) -> list[Tensor]:
        return [
            torch.add(gradient, parameter - align(c, parameter), alpha=strength)
            for gradient, parameter, c in zip(g, x, values, strict=True)
        ]

    return GradientTransform(apply)


def add(tree: Tree, scale: float = 1.0) -> GradientTransform:
    """+ scale * tree, the same at every step (a control variate)."""
    values = list(tree.values())

    def apply(g: list[Tensor], x: list[Tensor], step: int) -> list[Tensor]:
        return [torch.add(gradient, align(v, gradient), alpha=scale) for gradient, v in zip(g, values, strict=True)]

    return GradientTransform(apply)

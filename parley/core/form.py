"""The form of a reply: which tensors it must have, of which dtype and shape."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from parley.core.errors import InputError, WireError
from parley.core.tree import Schema, Tree

Spec = tuple[torch.dtype | None, tuple[int | None, ...]] | None
"""A tensor's dtype and shape; None stands for any dtype, for a side of any length, or for any tensor."""


class Form(dict[str, Spec]):
    """Specs by name. `Form.of(update=task.form, a=(torch.float64, ()))` is that of `Message.of(update=tree, a=...)`."""

    @classmethod
    def of(cls, **parts: Mapping[str, Spec] | Spec) -> Form:
        """From named forms of trees and specs of single tensors."""
        specs = cls()
        for name, part in parts.items():
            if isinstance(part, Mapping):
                specs.update({f"{name}/{inner}": spec for inner, spec in part.items()})
            else:
                specs[name] = part
        return specs

    @classmethod
    def like(cls, tree: Tree) -> Form:
        """The form of a tree that is at hand."""
        return cls({name: (value.dtype, tuple(value.shape)) for name, value in tree.items()})

    @cached_property
    def schema(self) -> frozenset[tuple[object, ...]]:
        return frozenset((name, *spec) for name, spec in self.items() if spec is not None)

    @cached_property
    def sizes(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Dtypes and shapes, of a form that leaves nothing open; an InputError names a tensor of which it does."""
        found = {}
        for name, spec in self.items():
            if spec is None or spec[0] is None or None in spec[1]:
                raise InputError(f"the dtype and shape of '{name}' are not known beforehand.")
            found[name] = (spec[0], tuple(side for side in spec[1] if side is not None))
        return found

    def fits(self, schema: Schema) -> bool:
        """Whether tensors of this schema have the form; quick, and only sure if it says yes."""
        return len(schema) == len(self) and self.schema.issuperset(schema)

    def check(self, tensors: Tree) -> None:
        """Raise a WireError that names the first tensor that is missing, unexpected or of another dtype or shape."""
        for name in self.keys() - tensors.keys():
            raise WireError(f"tensor '{name}' is missing.")
        for name, value in tensors.items():
            if name not in self:
                raise WireError(f"tensor '{name}' was not expected.")
            spec = self[name]
            if spec is None:
                continue
            dtype, shape = spec
            if dtype not in (None, value.dtype) or not _matches(value, shape):
                wanted = f"{dtype or 'any type'} {_shown(shape)}"
                raise WireError(f"tensor '{name}' is {value.dtype} {list(value.shape)}, expected {wanted}.")


def _matches(value: Tensor, shape: tuple[int | None, ...]) -> bool:
    return value.ndim == len(shape) and all(want in (None, side) for side, want in zip(value.shape, shape, strict=True))


def _shown(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('any' if side is None else str(side) for side in shape)}]"

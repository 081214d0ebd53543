"""The form of a message: which tensors it must have, of which dtype and shape, and which scalars in which bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from parley.core.errors import InputError, WireError
from parley.core.message import Payload
from parley.core.tree import Schema, Tree, is_finite

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
        sizes = {}
        for name, spec in self.items():
            if spec is None or spec[0] is None or None in spec[1]:
                raise InputError(f"the dtype and shape of '{name}' are not known beforehand.")
            sizes[name] = (spec[0], tuple(side for side in spec[1] if side is not None))
        return sizes

    def with_scalars(self, **scalars: Number) -> Accepted:
        """The form of a message with these tensors and scalars."""
        return Accepted(self, scalars)

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


@dataclass(frozen=True, slots=True)
class Number:
    """What a scalar must be: of just this type, and a number within bounds."""

    kind: type[bool] | type[int] | type[float] | type[str] = float
    low: float = -math.inf
    high: float = math.inf

    def check(self, name: str, value: object) -> None:
        if type(value) is not self.kind and not (self.kind is float and type(value) is int):
            raise WireError(f"'{name}' is a {type(value).__name__}, expected {self.kind.__name__}.")
        if isinstance(value, int | float) and not (math.isfinite(value) and self.low <= value <= self.high):
            raise WireError(f"'{name}' does not lie between {self.low:g} and {self.high:g}.")


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a message must be: tensors of a form, and scalars; nothing else, and only finite numbers."""

    tensors: Form
    scalars: Mapping[str, Number] = field(default_factory=dict)

    def check(self, message: Payload) -> None:
        """Raise a WireError that names what is missing, unexpected or wrong."""
        self.tensors.check(message.tensors)
        for name in self.scalars.keys() ^ message.scalars.keys():
            raise WireError(f"the scalar '{name[:40]}' {'is missing' if name in self.scalars else 'was not expected'}.")
        for name, number in self.scalars.items():
            number.check(name, message.scalars[name])
        if any(value.is_complex() for value in message.tensors.values()) or not is_finite(message.tensors):
            raise WireError("it has NaN, infinite or complex numbers.")


SEED = Number(int, 0, 2**64 - 1)
"""A seed."""


def _matches(value: Tensor, shape: tuple[int | None, ...]) -> bool:
    return value.ndim == len(shape) and all(want in (None, side) for side, want in zip(value.shape, shape, strict=True))


def _shown(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('any' if side is None else str(side) for side in shape)}]"

"""What travels, what the server keeps and what a client keeps: flat tensors plus scalars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor

from parley.core.errors import InputError
from parley.core.tree import Tree

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """Tensors by name and scalars by name. A name `group/rest` belongs to the tree `payload["group"]`."""

    tensors: Tree = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)

    @classmethod
    def of(cls, **parts: Tree | Tensor | Scalar) -> Self:
        """Build from named trees, tensors and scalars: `Message.of(model=params, c=variate, samples=200)`."""
        tensors: Tree = {}
        scalars: dict[str, Scalar] = {}
        for name, part in parts.items():
            if isinstance(part, Tensor):
                tensors[name] = part
            elif isinstance(part, Mapping):
                tensors.update({f"{name}/{inner}": value for inner, value in part.items()})
            else:
                scalars[name] = part
        return cls(tensors, scalars)

    def __getitem__(self, group: str) -> Tree:
        """The tree of that name (empty if there is none)."""
        prefix = group + "/"
        cut = len(prefix)
        return {name[cut:]: value for name, value in self.tensors.items() if name.startswith(prefix)}

    def tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise InputError(f"a {type(self).__name__.lower()} has no tensor '{name}'; it has {sorted(self.tensors)}.")
        return self.tensors[name]

    def number(self, name: str) -> float:
        value = self.scalars.get(name)
        if isinstance(value, str) or value is None:
            raise InputError(f"a {type(self).__name__.lower()} has no number '{name}'; it has {sorted(self.scalars)}.")
        return float(value)


class Message(Payload):
    """What a server and a recipient send each other; its bytes are counted."""

    __slots__ = ()


class State(Payload):
    """What the server keeps between rounds."""

    __slots__ = ()


class Memory(Payload):
    """What a client keeps to itself between rounds; it never travels."""

    __slots__ = ()

"""What travels, what the server keeps and what a client keeps: flat tensors plus scalars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor

from parley.core.errors import InputError, nearest
from parley.core.show import short
from parley.core.tree import Schema, Tree, schema

Scalar = bool | int | float | str
Part = Tree | Tensor | Scalar
"""What may be put into a payload under a name."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Payload:
    """Tensors by name and scalars by name. A name `group/rest` belongs to the tree `payload["group"]`."""

    tensors: Tree = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)

    @classmethod
    def of(cls, **parts: Part) -> Self:
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

    def replace(self, **parts: Part) -> Self:
        """The same with these trees, tensors and scalars in place of what had their names; an empty tree removes."""
        fresh = type(self).of(**parts)
        return self.holding(
            {n: v for n, v in self.tensors.items() if n.split("/", 1)[0] not in parts} | fresh.tensors,
            {n: v for n, v in self.scalars.items() if n not in parts} | fresh.scalars,
        )

    def holding(self, tensors: Tree, scalars: dict[str, Scalar]) -> Self:
        """Another payload of the same kind."""
        return type(self)(tensors, scalars)

    @property
    def schema(self) -> Schema:
        """Names, dtypes and shapes of its tensors."""
        return schema(self.tensors)

    def get(self, group: str) -> Tree:
        """The tree of that name, empty if there is none."""
        prefix = group + "/"
        cut = len(prefix)
        return {name[cut:]: value for name, value in self.tensors.items() if name.startswith(prefix)}

    def __getitem__(self, group: str) -> Tree:
        """The tree of that name, which must be there; `get` takes what may be missing."""
        tree = self.get(group)
        if not tree:
            raise InputError(f"a {self._kind} has no tree '{group}': {nearest(group, self.groups())}")
        return tree

    def __contains__(self, group: str) -> bool:
        return any(name.startswith(group + "/") for name in self.tensors)

    def groups(self) -> list[str]:
        """The names of its trees."""
        return list(dict.fromkeys(name.split("/", 1)[0] for name in self.tensors if "/" in name))

    def tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise InputError(f"a {self._kind} has no tensor '{name}'; it has {sorted(self.tensors)}.")
        return self.tensors[name]

    def number(self, name: str) -> float:
        value = self.scalars.get(name)
        if isinstance(value, str) or value is None:
            raise InputError(f"a {self._kind} has no number '{name}'; it has {sorted(self.scalars)}.")
        return float(value)

    def __repr__(self) -> str:
        trees = [(group, self.get(group).values()) for group in self.groups()]
        parts = [f"{name}: {len(tree)} tensors, {sum(map(Tensor.numel, tree)):,} numbers" for name, tree in trees]
        parts += [f"{name}: {short(value)}" for name, value in self.tensors.items() if "/" not in name]
        parts += [f"{name}={short(value)}" for name, value in self.scalars.items()]
        return f"{type(self).__name__}({'; '.join(parts)})"

    @property
    def _kind(self) -> str:
        return type(self).__name__.lower()


class Message(Payload):
    """What a server and a recipient send each other; its bytes are counted."""

    __slots__ = ()


class Stack:
    """Messages of several clients as one: every tensor has a row for each of them."""

    __slots__ = ("_cut", "_numbers", "scalars", "schema", "tensors")

    def __init__(self, tensors: Tree, scalars: dict[str, Scalar]) -> None:
        self.tensors, self.scalars = tensors, scalars
        self.schema: Schema = tuple([(name, value.dtype, value.shape[1:]) for name, value in tensors.items()])
        self._cut: list[tuple[Tensor, ...]] | None = None
        self._numbers: dict[str, list[float]] = {}

    def cut(self, row: int) -> Tree:
        """The tensors of one of them."""
        if self._cut is None:
            self._cut = [value.unbind(0) for value in self.tensors.values()]
        return {name: column[row] for name, column in zip(self.tensors, self._cut, strict=True)}

    def numbers(self, name: str) -> list[float]:
        """What all of them have under a name that holds one number."""
        if name not in self._numbers:
            self._numbers[name] = self.tensors[name].flatten().tolist()
        return self._numbers[name]


class Total(Stack):
    """Messages of several clients, of which only the sum is at hand: a client's is computed when somebody asks."""

    __slots__ = ("count", "each")

    def __init__(self, tensors: Tree, count: int, each: Callable[[int], Tree]) -> None:
        """`tensors`: of all `count` clients together, in the shapes of one's. `each`: those of one."""
        super().__init__(tensors, {})
        self.schema, self.count, self.each = schema(tensors), count, each

    def cut(self, row: int) -> Tree:
        return self.each(row)


class RowTree(Mapping[str, Tensor]):
    """Tensors of one client that lie in a stack, cut out when somebody asks for them."""

    __slots__ = ("row", "stack")

    def __init__(self, stack: Stack, row: int) -> None:
        self.stack, self.row = stack, row

    def number(self, name: str) -> float:
        return self.stack.numbers(name)[self.row]

    def __getitem__(self, name: str) -> Tensor:
        return self.stack.tensors[name][self.row]

    def __contains__(self, name: object) -> bool:
        return name in self.stack.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.stack.tensors)

    def __len__(self) -> int:
        return len(self.stack.tensors)


class Row(Message):
    """A message that lies in a stack: its tensors are cut out when somebody asks for them."""

    __slots__ = ("row", "stack")

    stack: Stack
    row: int

    def __init__(self, stack: Stack, row: int) -> None:
        object.__setattr__(self, "stack", stack)
        object.__setattr__(self, "row", row)

    @property
    def tensors(self) -> Tree:
        return self.stack.cut(self.row)

    @property
    def scalars(self) -> dict[str, Scalar]:
        return self.stack.scalars

    @property
    def schema(self) -> Schema:
        return self.stack.schema

    def holding(self, tensors: Tree, scalars: dict[str, Scalar]) -> Message:  # type: ignore[override]
        return Message(tensors, scalars)

    @classmethod
    def of(cls, **parts: Part) -> Message:  # type: ignore[override]
        return Message.of(**parts)

    @property
    def _kind(self) -> str:
        return "message"


class State(Payload):
    """What the server keeps between rounds."""

    __slots__ = ()


class Memory(Payload):
    """What a client keeps to itself between rounds; it never travels."""

    __slots__ = ()

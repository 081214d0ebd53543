"""Channels that see all compressible tensors as one vector: what most compressors are built on.

A compressor is three functions: `compress` turns the vector into named tensors, `restore` turns them back, and `sizes`
says what form they have. Everything else (which tensors, in which order, what else is in the message) is here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from parley.channels.base import Channel, compressible, title
from parley.core.context import Context
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Message
from parley.core.tree import Tree

Scope = Literal["tensor", "message"]
"""Whether each tensor has a scale of its own, or all have one."""


@dataclass(frozen=True)
class Layout:
    """The tensors that the vector is made of, in the order of their names."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, form: Form, trees: Sequence[str], what: str) -> Layout | None:
        """Of the compressible tensors of a form; None if there are none."""
        names = compressible(form, trees)
        if not names:
            return None
        shapes = tuple(_shape(form, name, what) for name in names)
        dtypes = {spec[0] for spec in (form[name] for name in names) if spec is not None}
        dtype = dtypes.pop()
        if dtypes or dtype is None or not dtype.is_floating_point:
            raise InputError(f"{what} needs trees of one real dtype, stated in the form of the reply.")
        return cls(tuple(names), shapes, dtype)

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    @property
    def entries(self) -> int:
        return sum(self.sizes)

    def segments(self, scope: Scope) -> list[int]:
        """The lengths of the pieces that have a scale of their own."""
        return self.sizes if scope == "tensor" else [self.entries]


class VectorChannel(Channel):
    """Compresses one vector; its tensors travel as `<channel>/<name>`."""

    @abstractmethod
    def compress(self, vector: Tensor, layout: Layout, key: Key) -> Tree:
        """What is sent in the vector's place."""

    @abstractmethod
    def restore(self, parts: Tree, layout: Layout, key: Key) -> Tensor:
        """The vector that they mean; a WireError if `compress` never makes such."""

    @abstractmethod
    def sizes(self, layout: Layout) -> Form:
        """The form of what `compress` makes."""

    def send(self, message: Message, context: Context, trees: Sequence[str]) -> Message:
        layout = Layout.of(Form.like(message.tensors), trees, title(self))
        if layout is None or layout.entries == 0:
            return message
        vector = torch.cat([message.tensors[name].reshape(-1) for name in layout.names])
        made = self.compress(vector, layout, context.key)
        rest = {name: value for name, value in message.tensors.items() if name not in layout.names}
        return Message(rest | {f"{title(self)}/{name}": value for name, value in made.items()}, message.scalars)

    def receive(self, message: Message, form: Form, trees: Sequence[str], key: Key) -> Message:
        layout = Layout.of(form, trees, title(self))
        if layout is None or layout.entries == 0:
            return message
        prefix = f"{title(self)}/"
        parts = {
            n.removeprefix(prefix): v for n, v in message.tensors.items() if n.startswith(prefix) and n not in form
        }
        vector = self.restore(parts, layout, key)
        pieces = zip(layout.names, vector.split(layout.sizes), layout.shapes, strict=True)
        whole = {name: piece.view(shape) for name, piece, shape in pieces}
        return Message(
            {name: whole[name] if name in whole else message.tensors[name] for name in form}, message.scalars
        )

    def transmitted(self, form: Form, trees: Sequence[str]) -> Form:
        layout = Layout.of(form, trees, title(self))
        if layout is None or layout.entries == 0:
            return form
        rest = {name: spec for name, spec in form.items() if name not in layout.names}
        return Form(rest | {f"{title(self)}/{name}": spec for name, spec in self.sizes(layout).items()})


def share_of(share: float, entries: int) -> int:
    """So many entries as a share of all comes to, at least one."""
    return min(entries, max(1, round(share * entries)))


def check_share(share: float, what: str) -> None:
    if not 0 < share <= 1:
        raise InputError(f"{what} sends a share of the entries between 0 and 1, not {share}.")


def _shape(form: Form, name: str, what: str) -> tuple[int, ...]:
    spec = form[name]
    if spec is None or None in spec[1]:
        raise InputError(f"{what} needs the shape of '{name}', which the form of the reply leaves open.")
    return tuple(side for side in spec[1] if side is not None)

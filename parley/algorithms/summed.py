"""Replies of which only the sum is known: secure sums, on the server's side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch

from parley.algorithms.protocol import Replies, refuse_absent
from parley.core.errors import UnsupportedError
from parley.core.form import Form
from parley.core.message import Message
from parley.core.tree import Tree


class SingleReplyError(UnsupportedError):
    """A method reads what a sum does not tell."""


class FoldedReplies(Replies):
    """Replies that cannot be read one by one."""

    __slots__ = ()

    def reweighted(self, factors: Mapping[str, float]) -> NoReturn:
        self._refuse()

    def __getitem__(self, sender: Any) -> NoReturn:
        self._refuse()

    @property
    def messages(self) -> NoReturn:  # type: ignore[override]
        self._refuse()

    def _refuse(self, what: str = "it reads single replies") -> NoReturn:
        raise SingleReplyError(f"{what}, but of a secure sum only the sum can be read.")


class SummedReplies(FoldedReplies):
    """Whose replies are in the sum is known, and their weights; what one of them holds is not.

    What was asked for as a sum (`reads="sum"`) has no mean, and the other way round.
    """

    __slots__ = ("_factor", "_form", "_total")

    def __init__(
        self, total: Tree, form: Form, factor: float | None, shares: dict[str, float], expected: float | None = None
    ) -> None:
        """`total` times `factor` is the mean change, in float64; without a factor it is a plain sum."""
        self._total, self._form, self._factor = total, form, factor
        self.weights, self.expected = shares, expected

    def mean_change(self, group: str, *, optional: bool = False) -> Tree:
        return self._scaled(group, self._weighted(), optional)

    def mean(self, group: str, *, optional: bool = False) -> Tree:
        total = math.fsum(self.weights.values())
        return self._scaled(group, self._weighted() / total, optional) if total > 0 else {}

    def _weighted(self) -> float:
        if self._factor is None:
            self._refuse("it reads a mean where it says that it reads sums (summed)")
        return self._factor

    def sum(self, group: str, *, optional: bool = False) -> Tree:
        if self._factor is not None:
            self._refuse("it reads a sum without declaring it (summed)")
        return self._scaled(group, 1.0, optional)

    def _scaled(self, group: str, factor: float, optional: bool) -> Tree:
        if not optional:
            refuse_absent(group, Message(self._total))
        prefix, scaled = group + "/", {}
        for name, spec in self._form.items():
            if not name.startswith(prefix):
                continue
            assert spec is not None
            value, dtype = self._total[name], spec[0]
            if factor != 1 and not value.is_floating_point():
                self._refuse(f"it takes the mean of the whole numbers '{name}'")
            scaled[name[len(prefix) :]] = (value if factor == 1 else value * factor).to(dtype or torch.float64)
        return scaled

    def __iter__(self) -> Iterator[Any]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

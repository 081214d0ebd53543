"""Rows of a Jacobian of which only the largest entries are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from parley.algorithms.ntk.jacobian.blocks import Rows, split
from parley.core.errors import WireError
from parley.core.tree import Tree


@dataclass(frozen=True, eq=False)
class Sparse:
    """The k largest entries of every row, over all parameters together."""

    forms: dict[str, tuple[int, ...]]
    """The parameters it is of, and their shapes."""
    values: Tensor
    """[n, outputs, k]."""
    places: Tensor
    """Where in the row they stand, int32 [n, outputs, k]."""

    @classmethod
    def of(cls, rows: Rows, share: float) -> Sparse:
        """What is left of rows if this share of each row's entries is kept, at least one."""
        count = max(1, round(share * rows.values.shape[2]))
        entries = rows.values.abs().topk(count, dim=2, sorted=False).indices.sort(dim=2).values
        return cls(rows.forms, rows.values.gather(2, entries), entries.to(torch.int32))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | Tensor) -> Sparse:
        return replace(self, values=self.values[rows], places=self.places[rows])

    @staticmethod
    def cat(blocks: Sequence[Sparse]) -> Sparse:
        values, entries = torch.cat([b.values for b in blocks]), torch.cat([b.places for b in blocks])
        return replace(blocks[0], values=values, places=entries)

    @property
    def entries(self) -> int:
        """Of a whole row."""
        return sum(prod(shape) for shape in self.forms.values())

    def check(self) -> None:
        """A WireError unless every place is in its row, once."""
        entries = self.places
        if bool((entries < 0).any()) or bool((entries >= self.entries).any()):
            raise WireError("it names entries of a Jacobian beyond the model.")
        if bool((entries[..., 1:] <= entries[..., :-1]).any()):
            raise WireError("it names entries of a Jacobian twice or out of order.")

    def dense(self) -> Rows:
        """With zeros where nothing is left."""
        whole = self.values.new_zeros(*self.values.shape[:2], self.entries)
        return Rows(self.forms, whole.scatter_(2, self.places.long(), self.values))

    def gram(self, other: Sparse, full: bool) -> Tensor:
        """As `Outer.gram`."""
        here = self.dense()
        return here.gram(here if other is self else other.dense(), full)

    def vjp(self, r: Tensor) -> Tree:
        entries = self.places.reshape(-1).long()
        sums = [
            torch.zeros(self.entries, dtype=r.dtype, device=r.device).index_add_(
                0, entries, (residual.unsqueeze(2) * self.values).reshape(-1)
            )
            for residual in r
        ]
        return split(torch.stack(sums), self.forms)

    def jvp(self, tree: Mapping[str, Tensor]) -> Tensor:
        whole = torch.cat([tree[name].reshape(-1) for name in self.forms])
        return (self.values * whole[self.places.long()]).sum(2)

    def rows(self) -> Tree:
        return self.dense().rows()

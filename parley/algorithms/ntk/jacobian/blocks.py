"""Parts of a Jacobian J [n, outputs, parameters] that belong to one layer: as factors, or as rows written out.

Outer   row (i, j) is sum_p delta_ijp (x) [a_ip, 1]: a layer whose output at position p is W a_ip + b. Then

        <row (i, j), row (k, l)> = sum_pq (a_ip . a_kq + 1) (delta_ijp . delta_klq),

        for a dense layer (one position) the product of the entries of two Gram matrices.
Rows    the numbers themselves, for what has no such form or where the factors would be larger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from parley.core.tree import Tree


@dataclass(frozen=True, eq=False)
class Outer:
    """A dense or convolutional layer by its activations and back-propagated sensitivities."""

    weight: str
    bias: str | None
    shape: tuple[int, ...]
    """Of the weight, [out, in...]."""
    a: Tensor
    """Activations that enter, [n, positions, in]."""
    delta: Tensor
    """d output_j / d (the layer's own output), [n, outputs, positions, out]."""
    last: bool = False
    """The layer's output is the network's, so that delta is one identity matrix for every sample."""

    def __len__(self) -> int:
        return len(self.a)

    def __getitem__(self, rows: slice | Tensor) -> Outer:
        return replace(self, a=self.a[rows], delta=self.delta[rows])

    @staticmethod
    def cat(blocks: Sequence[Outer]) -> Outer:
        first = blocks[0]
        if len(blocks) == 1:
            return first
        a = torch.cat([b.a for b in blocks])
        delta = first.delta[:1].expand(len(a), -1, -1, -1) if first.last else torch.cat([b.delta for b in blocks])
        return replace(first, a=a, delta=delta)

    @property
    def forms(self) -> dict[str, tuple[int, ...]]:
        """The parameters it is of, and their shapes."""
        return {self.weight: self.shape} | ({self.bias: self.shape[:1]} if self.bias else {})

    def gram(self, other: Outer, full: bool) -> Tensor:
        """<row, row'> with those of another: [n, m] summed over the outputs, or [n, outputs, m, outputs]."""
        (n, positions, width), (m, others) = self.a.shape, other.a.shape[:2]
        a = self.a.reshape(-1, width) @ other.a.reshape(-1, width).T
        if self.bias:
            a += 1
        if not full and self.last:
            return a.mul_(self.shape[0])
        if not full:
            delta = _by_position(self.delta) @ _by_position(other.delta).T
            product = delta.mul_(a)
            if positions == others == 1:
                return product
            return product.view(n, positions, m, others).sum((1, 3))
        outputs, out = self.delta.shape[1], self.delta.shape[3]
        delta = (self.delta.reshape(-1, out) @ other.delta.reshape(-1, out).T).view(
            n, outputs, positions, m, outputs, others
        )
        return (delta * a.view(n, 1, positions, m, 1, others)).sum((2, 5))

    def vjp(self, r: Tensor) -> Tree:
        """J'R of each R [..., n, outputs]."""
        weighted = torch.einsum("tnj,njpo->tnpo", r, self.delta)
        gradient = torch.einsum("tnpo,npi->toi", weighted, self.a)
        grads = {self.weight: gradient.reshape(-1, *self.shape)}
        return grads | ({self.bias: weighted.sum((1, 2))} if self.bias else {})

    def jvp(self, tree: Mapping[str, Tensor]) -> Tensor:
        """J v, [n, outputs]."""
        moved = self.a @ tree[self.weight].reshape(self.shape[0], -1).T
        if self.bias:
            moved = moved + tree[self.bias]
        return torch.einsum("njpo,npo->nj", self.delta, moved)

    def rows(self) -> Tree:
        """Parameter -> [n, outputs, ...]."""
        n, outputs = self.delta.shape[:2]
        rows_of_weight = torch.einsum("njpo,npi->njoi", self.delta, self.a).reshape(n, outputs, *self.shape)
        return {self.weight: rows_of_weight} | ({self.bias: self.delta.sum(2)} if self.bias else {})


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows written out, of one or more parameters, or of some entries of them."""

    forms: dict[str, tuple[int, ...]]
    """The parameters it is of, and their shapes."""
    values: Tensor
    """[n, outputs, entries], in the order of `forms`."""

    @classmethod
    def of(cls, tree: Tree) -> Rows:
        """From parameter -> [n, outputs, ...]."""
        forms = {name: tuple(value.shape[2:]) for name, value in tree.items()}
        return cls(forms, torch.cat([value.flatten(2) for value in tree.values()], 2))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | Tensor) -> Rows:
        return Rows(self.forms, self.values[rows])

    @staticmethod
    def cat(blocks: Sequence[Rows]) -> Rows:
        if len(blocks) == 1:
            return blocks[0]
        return Rows(blocks[0].forms, torch.cat([block.values for block in blocks]))

    def gram(self, other: Rows, full: bool) -> Tensor:
        """As `Outer.gram`."""
        if not full:
            return self.values.flatten(1) @ other.values.flatten(1).T
        n, outputs, m = len(self), self.values.shape[1], len(other)
        return (self.values.flatten(0, 1) @ other.values.flatten(0, 1).T).view(n, outputs, m, outputs)

    def vjp(self, r: Tensor) -> Tree:
        return split(r.flatten(1) @ self.values.flatten(0, 1), self.forms)

    def jvp(self, tree: Mapping[str, Tensor]) -> Tensor:
        return self.values @ torch.cat([tree[name].reshape(-1) for name in self.forms])

    def rows(self) -> Tree:
        return split(self.values, self.forms)


def split(values: Tensor, forms: Mapping[str, tuple[int, ...]]) -> Tree:
    """[..., entries] by parameters, each in its shape."""
    parts = values.split([prod(shape) for shape in forms.values()], -1)
    return {
        name: part.reshape(*part.shape[:-1], *shape) for (name, shape), part in zip(forms.items(), parts, strict=True)
    }


def _by_position(delta: Tensor) -> Tensor:
    """[n, outputs, positions, out] -> [n positions, outputs out]."""
    n, outputs, positions, out = delta.shape
    return delta.transpose(1, 2).reshape(n * positions, outputs * out)

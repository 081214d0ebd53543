"""A Jacobian at n samples, held by layers (`blocks`), with what is done with it and never the whole of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor

from parley.algorithms.ntk.jacobian.blocks import Outer, Rows
from parley.algorithms.ntk.jacobian.sparse import Sparse
from parley.core.errors import InputError
from parley.core.tree import Tree

Block = Outer | Rows | Sparse
BUDGET = 2**29
"""Bytes that intermediate results may take unless one says otherwise."""


@dataclass(frozen=True, eq=False)
class Jacobian:
    """d outputs / d parameters at n samples."""

    blocks: tuple[Block, ...]
    outputs: int
    """Outputs of the network (d_2)."""

    def __len__(self) -> int:
        return len(self.blocks[0])

    def __getitem__(self, rows: slice | Tensor) -> Jacobian:
        """That of some samples."""
        return Jacobian(tuple(block[rows] for block in self.blocks), self.outputs)

    @staticmethod
    def cat(parts: Sequence[Jacobian]) -> Jacobian:
        """That of all samples together."""
        blocks = zip(*(part.blocks for part in parts), strict=True)
        return Jacobian(tuple(type(group[0]).cat(group) for group in blocks), parts[0].outputs)

    # --- what travels ---

    def tree(self) -> dict[str, Tree]:
        """As trees of tensors with one row a sample, to be sent: lossless, without what the layout tells."""
        outer = [block for block in self.blocks if isinstance(block, Outer)]
        return {
            "activations": {block.weight: block.a for block in outer},
            "sensitivities": {b.weight: b.delta for b in outer if not b.last},
            "rows": {n: v for b in self.blocks if isinstance(b, Rows) for n, v in b.rows().items()},
        }

    @classmethod
    def of(cls, trees: Mapping[str, Tree], shapes: Mapping[str, tuple[int, ...]], outputs: int) -> Jacobian:
        """From `tree`; `shapes`: those of the parameters. A layer without sensitivities is the last one."""
        blocks: list[Block] = []
        for weight, a in trees.get("activations", {}).items():
            bias = weight.removesuffix("weight") + "bias"
            delta = trees.get("sensitivities", {}).get(weight)
            last = delta is None
            if delta is None:
                eye = torch.eye(outputs, dtype=a.dtype, device=a.device)
                delta = eye.view(1, outputs, 1, outputs).expand(len(a), -1, -1, -1)
            blocks.append(Outer(weight, bias if bias in shapes else None, shapes[weight], a, delta, last))
        if rows := trees.get("rows"):
            blocks.append(Rows.of(rows))
        return cls(tuple(blocks), outputs)

    def rows(self) -> Tree:
        """Parameter -> [n, outputs, ...]: J itself, n outputs numbers for every weight."""
        return {name: value for block in self.blocks for name, value in block.rows().items()}

    # --- products ---

    def kernel(self, other: Jacobian | None = None, *, full: bool = False, budget: int = BUDGET) -> Tensor:
        """The empirical neural tangent kernel: (6), averaged over outputs, [n, m]; or full, [n outputs, m outputs].

        `other`: the Jacobian at other samples, in place of its own. Computed by tiles that take `budget` bytes.
        """
        right = self if other is None else other
        if self.outputs != right.outputs:
            raise InputError(f"a kernel is of networks with as many outputs, not {self.outputs} and {right.outputs}.")
        scale, many = (1.0, self.outputs) if full else (1 / self.outputs, 1)
        sample = self._sample()
        result = torch.empty(len(self) * many, len(right) * many, dtype=sample.dtype, device=sample.device)
        for here, beyond in self._tiles(right, full, budget):
            if other is None and here.start < beyond.start:
                continue
            tile = torch.zeros((here.stop - here.start) * many, (beyond.stop - beyond.start) * many).to(sample)
            for a, b in zip(self.blocks, right.blocks, strict=True):
                tile += a[here].gram(b[beyond], full).reshape(tile.shape)  # type: ignore[arg-type]
            tile *= scale
            rows, columns = slice(here.start * many, here.stop * many), slice(beyond.start * many, beyond.stop * many)
            result[rows, columns] = tile
            if other is None and here.start > beyond.start:
                result[columns, rows] = tile.T
        return result

    def vjp(self, r: Tensor) -> Tree:
        """J'R of R [n, outputs], as a tree of parameters; of several R [t, n, outputs], with a row for each."""
        several = r if r.ndim == 3 else r.unsqueeze(0)
        result = {name: value for block in self.blocks for name, value in block.vjp(several).items()}
        return result if r.ndim == 3 else {name: value[0] for name, value in result.items()}

    def jvp(self, tree: Mapping[str, Tensor]) -> Tensor:
        """J v of a tree of parameters, [n, outputs]: how the outputs change with them, to first order."""
        return torch.stack([block.jvp(tree) for block in self.blocks]).sum(0)

    def _sample(self) -> Tensor:
        first = self.blocks[0]
        return first.a if isinstance(first, Outer) else first.values

    def _tiles(self, right: Jacobian, full: bool, budget: int) -> Iterator[tuple[slice, slice]]:
        """Of samples, so small that the Gram matrices of any layer stay within the budget."""
        entry = self._sample().element_size()
        pairs = max(
            (b.a.shape[1] ** 2 * (2 + (2 * self.outputs**2 if full else 1)) if isinstance(b, Outer) else 2)
            for b in self.blocks
        ) + (2 * self.outputs**2 if full else 2)
        side = isqrt(budget // (entry * pairs))
        for b in self.blocks:
            if isinstance(b, Sparse):  # both sides of a tile are written out
                side = min(side, budget // (2 * entry * self.outputs * b.entries))
        side = max(1, side)
        side = min(side, max(1, -(-len(self) // 4)), 2**10) if right is self else side
        for start in range(0, len(self), side):
            for begin in range(0, len(right), side):
                yield slice(start, min(start + side, len(self))), slice(begin, min(begin + side, len(right)))

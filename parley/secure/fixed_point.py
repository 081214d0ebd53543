"""Replies as whole numbers in a ring: what can be added up exactly, masked or not.

    real numbers    q = f x / step, cut off towards 0;  step = largest / 2^(bits - 1), 0 < f <= 1 the client's weight
    whole numbers   as they are

The ring is Z modulo 2^32, or 2^64 where n sums of the largest numbers would not fit, so a sum of n clients cannot
overflow: f, |x| <= largest and n are checked where the client is. Whole numbers go modulo 2^64, each at most the
largest of its type over n. Cutting off makes no reply longer, so a norm that bounds it still does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch

from parley.core.errors import InputError, UnsupportedError
from parley.core.form import Form
from parley.core.tree import Tree

Vector = np.ndarray
"""Numbers of the ring: uint32 or uint64."""
_WHOLE = (torch.int64, torch.int32, torch.int16)


@dataclass(frozen=True)
class FixedPoint:
    """How real numbers are rounded."""

    bits: int
    largest: float

    @property
    def step(self) -> float:
        """The distance of two numbers that can be told apart."""
        return float(self.largest / 2 ** (self.bits - 1))

    def ring(self, clients: int) -> torch.dtype:
        """The integers in which sums of so many cannot overflow."""
        most = clients * 2 ** (self.bits - 1)
        if most < 2**31:
            return torch.int32
        if most < 2**63:
            return torch.int64
        raise InputError(f"secure sums of {clients} clients with {self.bits} bits overflow; use fewer bits.")


@dataclass(frozen=True)
class Layout:
    """Where the tensors of a reply lie in two vectors, one of real numbers and one of whole ones."""

    form: Form
    code: FixedPoint

    def __post_init__(self) -> None:
        try:
            sizes = self.form.sizes
        except InputError as error:
            raise UnsupportedError(f"its replies cannot be added up: {error}") from None
        for name, (dtype, _) in sizes.items():
            if not (dtype.is_floating_point or dtype in _WHOLE):
                raise UnsupportedError(f"'{name}' of its replies holds no numbers that can be added up.")

    @cached_property
    def counts(self) -> tuple[int, int]:
        """Entries of the two vectors."""
        real = sum(prod(shape) for dtype, shape in self.form.sizes.values() if dtype.is_floating_point)
        return real, sum(prod(shape) for _, shape in self.form.sizes.values()) - real

    def kinds(self, clients: int) -> tuple[np.dtype, np.dtype]:
        """The types of the two vectors."""
        return np.dtype("<u4" if self.code.ring(clients) == torch.int32 else "<u8"), np.dtype("<u8")

    def transmitted(self, clients: int) -> Form:
        """The form of the masked vectors on their way."""
        counts = dict(zip(("reals", "wholes"), self.counts, strict=True))
        rings = {"reals": self.code.ring(clients), "wholes": torch.int64}
        return Form.of(masked={name: (rings[name], (count,)) for name, count in counts.items() if count})

    def encode(self, tensors: Tree, factor: float, clients: int) -> tuple[Vector, Vector]:
        """A client's two vectors; an InputError names a tensor with a number that is too large."""
        reals, wholes = [], []
        for name, (dtype, _) in self.form.sizes.items():
            value = tensors[name].detach().reshape(-1)
            if dtype.is_floating_point:
                reals.append(self._rounded(name, value.double().numpy(), factor))
                continue
            most = torch.iinfo(dtype).max // clients
            if value.numel() and not (int(value.max()) <= most and int(value.min()) >= -most):
                raise InputError(f"'{name}' has whole numbers above {most}, which {clients} clients cannot add up.")
            wholes.append(value.to(torch.int64).numpy())
        kinds = self.kinds(clients)
        joined = (np.concatenate(part) if part else np.zeros(0, np.int64) for part in (reals, wholes))
        first, second = (part.astype(kind) for part, kind in zip(joined, kinds, strict=True))
        return first, second

    def _rounded(self, name: str, value: np.ndarray, factor: float) -> np.ndarray:
        size = float(np.abs(value).max(initial=0.0))
        if not size <= self.code.largest:
            raise InputError(
                f"'{name}' has a number of size {size:.4g}, but secure-sum takes none above {self.code.largest:g}; "
                "raise its setting largest, or clip first."
            )
        return np.trunc(value * (factor / self.code.step)).astype(np.int64)

    def decode(self, vectors: Sequence[Vector]) -> Tree:
        """The sums: real numbers in float64, whole ones in their own type."""
        signed = [vector.view(np.dtype(f"<i{vector.itemsize}")).astype(np.int64) for vector in vectors]
        decoded: Tree = {}
        starts = [0, 0]
        for name, (dtype, shape) in self.form.sizes.items():
            kind, count = int(not dtype.is_floating_point), prod(shape)
            part = torch.from_numpy(signed[kind][starts[kind] : starts[kind] + count].copy()).reshape(shape)
            starts[kind] += count
            decoded[name] = part.to(dtype) if kind else part.double() * self.code.step
        return decoded

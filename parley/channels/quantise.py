"""Quantisation with stochastic rounding: unbiased, a few bits an entry.

    QSGD (Alistarh et al., 2017), FedPAQ (Reisizadeh et al., 2020)   ||v|| sign(v_i) l_i / s,  l_i in {0, ..., s}
    FedCOM (Haddadpour et al., 2021)                                 min v + l_i (max v - min v) / 255

l_i is one of the two levels around v_i, drawn so that its mean is v_i. b bits are one for the sign and s = 2^(b-1) - 1
levels; one bit alone chooses between -||v|| and ||v||. Codes are packed; a scale travels for each tensor or for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from parley.channels.base import channel
from parley.channels.packing import pack, packed_size, unpack
from parley.channels.vector import Layout, Scope, VectorChannel
from parley.core.errors import InputError, WireError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.tree import Tree


@channel("qsgd")
@dataclass(frozen=True)
class QSGD(VectorChannel):
    """QSGD (Alistarh et al., 2017): every entry rounded at random to one of a few levels, right on average."""

    bits: int = 4
    """Bits an entry, 1 to 8."""
    norm: Literal["l2", "max"] = "max"
    """What the levels are a share of: the Euclidean norm, as published, or the largest entry, which has less variance
    for all but very sparse vectors."""
    scope: Scope = "tensor"
    """A scale for every tensor, or one for the message."""

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise InputError(f"qsgd sends 1 to 8 bits an entry, not {self.bits}.")

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def levels(self) -> float:
        """Steps from 0 to the norm (s); one bit has a half, there being no 0."""
        return 2 ** (self.bits - 1) - 1 or 0.5

    def variance(self, entries: int) -> float:
        if self.bits == 1:
            return entries - 1.0
        even = entries / (4 * self.levels**2)
        return even if self.norm == "max" else min(even, math.sqrt(entries) / self.levels)

    def compress(self, vector: Tensor, layout: Layout, key: Key) -> Tree:
        pieces = vector.split(layout.segments(self.scope))
        norms = torch.stack([_norm(piece, self.norm) for piece in pieces])
        levels = rounded(pieces, self.levels / norms, self.levels, 2 * self.levels, key)
        return {"codes": pack(levels, self.bits), "norms": norms}

    def restore(self, parts: Tree, layout: Layout, key: Key) -> Tensor:
        norms = parts["norms"]
        if bool((norms < 0).any()):
            raise WireError("it has a norm below 0.")
        codes = unpack(parts["codes"], layout.entries, self.bits, round(2 * self.levels))
        return spread(codes.to(layout.dtype).sub_(self.levels), layout.segments(self.scope), norms / self.levels)

    def sizes(self, layout: Layout) -> Form:
        count = len(layout.segments(self.scope))
        codes = packed_size(layout.entries, self.bits)
        return Form(codes=(torch.uint8, (codes,)), norms=(layout.dtype, (count,)))


@channel("fedpaq")
@dataclass(frozen=True)
class FedPAQ(QSGD):
    """FedPAQ's quantiser (Reisizadeh et al., 2020): QSGD of the whole update by its Euclidean norm."""

    norm: Literal["l2", "max"] = "l2"
    """What the levels are a share of: the Euclidean norm, as published, or the largest entry."""
    scope: Scope = "message"
    """A scale for every tensor, or one for the message."""


@channel("fedcom")
@dataclass(frozen=True)
class FedCOM(VectorChannel):
    """FedCOM's quantiser (Haddadpour et al., 2021): 256 levels between the smallest and the largest entry."""

    scope: Scope = "tensor"
    """A range for every tensor, or one for the message."""

    @property
    def unbiased(self) -> bool:
        return True

    def variance(self, entries: int) -> float:
        return entries / (2 * 255**2)  # (max - min)^2 <= 2 ||x||^2, and a quarter of a level squared an entry

    def compress(self, vector: Tensor, layout: Layout, key: Key) -> Tree:
        pieces = vector.split(layout.segments(self.scope))
        ends = torch.stack([torch.stack(_ends(piece)) for piece in pieces])
        steps = 255 / (ends[:, 1] - ends[:, 0])
        shifted = [piece - low for piece, low in zip(pieces, ends[:, 0], strict=True)]
        return {"codes": rounded(shifted, steps, 0.0, 255, key), "ends": ends}

    def restore(self, parts: Tree, layout: Layout, key: Key) -> Tensor:
        low, high = parts["ends"].unbind(1)
        if bool((low > high).any()):
            raise WireError("it has a range whose end is below its beginning.")
        pieces = layout.segments(self.scope)
        vector = spread(parts["codes"].to(layout.dtype), pieces, (high - low) / 255)
        for piece, first in zip(vector.split(pieces), low, strict=True):
            piece += first
        return vector

    def sizes(self, layout: Layout) -> Form:
        count = len(layout.segments(self.scope))
        return Form(codes=(torch.uint8, (layout.entries,)), ends=(layout.dtype, (count, 2)))


def qsgd(bits: int = 4, norm: Literal["l2", "max"] = "max", scope: Scope = "tensor") -> QSGD:
    """See `QSGD`."""
    return QSGD(bits, norm, scope)


def fedpaq(bits: int = 4) -> FedPAQ:
    """See `FedPAQ`."""
    return FedPAQ(bits)


def fedcom() -> FedCOM:
    """See `FedCOM`."""
    return FedCOM()


def rounded(pieces: Sequence[Tensor], factors: Tensor, zero: float, largest: float, key: Key) -> Tensor:
    """floor(piece * factor + zero + u) with u uniform in [0, 1): unbiased levels in 0 ... largest, uint8."""
    sizes = [len(piece) for piece in pieces]
    # Half precision could not tell apart what lies between two of 256 levels.
    exact = np.float64 if factors.dtype == torch.float64 else np.float32
    levels = torch.from_numpy(key.fold("rounding").numpy().random(sum(sizes), exact))
    for part, piece, factor in zip(levels.split(sizes), pieces, factors.to(levels.dtype), strict=True):
        if math.isfinite(factor):  # otherwise it is all alike, or too small to tell
            part.addcmul_(piece.to(levels.dtype), factor)
    return levels.add_(zero).floor_().clamp_(0, largest).to(torch.uint8)


def spread(levels: Tensor, sizes: list[int], factors: Tensor) -> Tensor:
    """Every piece times its factor, in place."""
    for piece, factor in zip(levels.split(sizes), factors, strict=True):
        piece *= factor
    return levels


def _norm(piece: Tensor, norm: str) -> Tensor:
    if norm == "l2":
        length: Tensor = torch.linalg.vector_norm(piece)
        return length
    low, high = _ends(piece)
    return torch.maximum(high, -low)


def _ends(piece: Tensor) -> tuple[Tensor, Tensor]:
    if not len(piece):
        return piece.new_zeros(()), piece.new_zeros(())
    low, high = torch.aminmax(piece)
    return low, high

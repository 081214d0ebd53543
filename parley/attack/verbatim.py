"""Whether replies hold the data as they are: inputs, labels, single values. Needs no attack, only a look.

Every tensor the server received is compared with the victim's samples. It finds raw inputs wherever a method sends them
(points of kernel methods, the first layer's activations of factored Jacobians, shared rows), labels, and values of
single features, such as the thresholds of trees. Because some values occur everywhere (a black pixel), the share of
matches is given beside that of a decoy: other samples that the server never met.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from parley.attack.intercept import SeenExchange
from parley.data import ClientData

_SAME = 1e-6
"""Two numbers are the same up to this share: what rounding to single precision leaves."""
_MANY = 2**20
"""Entries of a tensor that are looked at, from its beginning."""


@dataclass(frozen=True)
class Disclosure:
    """Something of the victim's that stands in a reply as it is."""

    asked: str
    """The function whose reply it is."""
    tensor: str
    what: str
    """inputs, labels or values."""
    share: float
    """Of the victim's inputs or labels that are there; of values: of the tensor's numbers that are the victim's."""
    decoy: float
    """The same for samples that were not sent."""

    def sentence(self) -> str:
        where = f"'{self.tensor}' of the reply '{self.asked}'"
        if self.what == "values":
            return (
                f"{self.share:.0%} of the numbers in {where} are values of the victim's samples, to the last digit "
                f"({self.decoy:.0%} are values of samples that were not sent)."
            )
        return f"{where} holds {self.share:.0%} of the victim's {self.what} as they are: it sends the data."


def disclosed(exchanges: Iterable[SeenExchange], victim: ClientData, decoy: ClientData) -> list[Disclosure]:
    """All that is found; what a decoy matches as well counts for nothing."""
    disclosures = []
    for answer in exchanges:
        for name, value in answer.received.tensors.items():
            for what, measure in (("inputs", _inputs), ("labels", _labels), ("values", _values)):
                share, other = measure(value, victim), measure(value, decoy)
                if share is not None and other is not None and share > 2 * other and share >= _LEAST[what]:
                    disclosures.append(Disclosure(answer.asked, name, what, share, other))
                    break
    return disclosures


_LEAST = {"inputs": 1e-9, "labels": 1.0, "values": 0.2}


def _inputs(value: Tensor, data: ClientData) -> float | None:
    """The share of samples whose inputs are rows of this tensor."""
    inputs = data.x.double().flatten(1)
    width = inputs.shape[1]
    if not value.is_floating_point() or not value.numel() or value.numel() % width or width < 2:
        return None
    if width not in (value.shape[-1], value[0].numel()):
        return None
    rows = value.double().reshape(-1, width)[: max(_MANY // width, 1)]
    near = torch.cdist(inputs, rows, compute_mode="donot_use_mm_for_euclid_dist").min(1).values
    return float((near <= _SAME * inputs.norm(dim=1).clamp(min=1.0)).double().mean())


def _labels(value: Tensor, data: ClientData) -> float | None:
    """1 if the tensor is the labels, as numbers or with a one in the place of each; the order does not matter."""
    if not value.numel() or value.ndim == 0 or len(value) != len(data):
        return None
    if value.ndim == 2 and not data.y.is_floating_point() and value.shape[1] > 1:
        ones = ((value == 0) | (value == 1)).all() and (value.sum(1) == 1).all()
        return float(bool(ones) and _alike(value.argmax(1), data.y)) if ones else None
    if value.numel() != data.y.numel():
        return None
    return float(_alike(value.double().flatten(), data.y.double().flatten()))


def _values(value: Tensor, data: ClientData) -> float | None:
    """The share of the tensor's numbers that are values of single features of the samples."""
    if not value.is_floating_point() or value.numel() < 2:
        return None
    numbers = value.double().flatten()[:_MANY]
    numbers = numbers[numbers != 0]
    known = data.x.double().flatten().unique()
    if not len(numbers) or not len(known):
        return None
    after = torch.searchsorted(known, numbers).clamp(max=len(known) - 1)
    apart = torch.minimum((known[after] - numbers).abs(), (known[(after - 1).clamp(min=0)] - numbers).abs())
    return float((apart <= _SAME * numbers.abs()).double().mean())


def _alike(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a.double().sort().values, b.double().sort().values, rtol=_SAME, atol=0))

"""One client's samples, and what a data set says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from parley.core.errors import InputError

Kind = Literal["classification", "regression", "text"]


@dataclass(frozen=True, slots=True)
class ClientData:
    """Samples of one client (or a test set): row i of `x` belongs to row i of `y`."""

    x: Tensor
    """[n, ...] inputs: float32, or int64 token ids."""
    y: Tensor
    """[n] class numbers (int64), or [n] or [n, k] regression targets (float32)."""

    def __post_init__(self) -> None:
        if self.x.ndim == 0 or self.y.ndim == 0 or len(self.x) != len(self.y):
            raise InputError(
                f"inputs and targets must have one row per sample, but have shapes {tuple(self.x.shape)} "
                f"and {tuple(self.y.shape)}."
            )

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class DataInfo:
    """What a model builder and a reader have to know of a data set."""

    name: str
    """As registered, or the user's own."""
    shape: tuple[int, ...]
    """Shape of one input."""
    outputs: int
    """Number of classes, or dimension of the regression target."""
    kind: Kind
    """'text' means int64 token ids in, class numbers out."""
    classes: tuple[str, ...] = ()
    """Class names, where known."""
    source: str = ""
    """Where the official data come from."""
    license: str = ""
    """Terms of use."""
    vocabulary: int = 0
    """Number of different token ids (text only)."""

    def __post_init__(self) -> None:
        if self.outputs < 1:
            raise InputError(f"data set '{self.name}' has {self.outputs} outputs; there must be at least one.")
        if self.classes and len(self.classes) != self.outputs:
            raise InputError(
                f"data set '{self.name}' names {len(self.classes)} classes but has {self.outputs} outputs."
            )


def as_inputs(values: Any) -> Tensor:
    """Floats, bytes and booleans become float32 (unscaled); other integers are taken for token ids, int64."""
    tensor = _tensor(values)
    if tensor.is_floating_point() or tensor.dtype in (torch.uint8, torch.bool):
        return tensor.to(torch.float32)
    return tensor.to(torch.int64)


def as_targets(values: Any) -> Tensor:
    """Integers and booleans become int64 class numbers, floats become float32 regression targets."""
    tensor = _tensor(values)
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def infer_info(name: str, sample: ClientData, largest_label: int) -> DataInfo:
    """What can be told from one client and the largest label of all clients (-1: unknown or regression)."""
    shape = tuple(sample.x.shape[1:])
    if sample.y.is_floating_point():
        return DataInfo(name, shape, sample.y[0].numel() if len(sample) else 1, "regression")
    if sample.x.is_floating_point():
        return DataInfo(name, shape, largest_label + 1, "classification")
    return DataInfo(name, shape, largest_label + 1, "text", vocabulary=int(sample.x.max()) + 1)


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise InputError(f"samples must be numbers, but an array of type {array.dtype} was given.")
    # `require` copies only what torch could not view (read-only or strided memory).
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))

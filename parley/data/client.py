"""One client's samples, and what a data set says about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from parley.core.errors import InputError
from parley.core.show import Brief
from parley.data.encoding import Encoding
from parley.data.scaling import Scaling

Kind = Literal["classification", "regression", "text"]


@dataclass(frozen=True, slots=True, repr=False)
class ClientData(Brief):
    """Samples of one client (or a test set): row i of `x` belongs to row i of `y`."""

    x: Tensor
    """[n, ...] inputs: float32 or float64, or int64 token ids."""
    y: Tensor
    """[n] class numbers (int64), or [n] or [n, k] regression targets (of the inputs' dtype)."""

    def __post_init__(self) -> None:
        inputs, targets = self.x.shape, self.y.shape
        if not inputs or not targets or inputs[0] != targets[0]:
            raise InputError(
                f"inputs and targets must have one row per sample, but have shapes {tuple(inputs)} "
                f"and {tuple(targets)}."
            )

    def __len__(self) -> int:
        return self.x.shape[0]


class Unread(ClientData):
    """Samples that are loaded when somebody looks at them."""

    __slots__ = ("_load", "_read", "_versions")

    _load: Callable[[], ClientData]
    _read: ClientData | None
    _versions: int

    def __init__(self, load: Callable[[], ClientData]) -> None:
        object.__setattr__(self, "_load", load)
        object.__setattr__(self, "_read", None)

    @property
    def x(self) -> Tensor:
        return (self._now() if self._read is None else self._read).x

    @property
    def y(self) -> Tensor:
        return (self._now() if self._read is None else self._read).y

    def _now(self) -> ClientData:
        with torch._C._DisableFuncTorch():  # what looks first may be inside torch.func.grad
            data = self._load()
        object.__setattr__(self, "_read", data)
        object.__setattr__(self, "_versions", data.x._version + data.y._version)
        return data

    @property
    def changed(self) -> bool:
        """Whether somebody has written to them."""
        return self._read is not None and self._read.x._version + self._read.y._version != self._versions

    def __repr__(self) -> str:
        return repr(ClientData(self.x, self.y))

    def __reduce__(self) -> tuple[type[ClientData], tuple[Tensor, Tensor]]:
        return ClientData, (self.x, self.y)


@dataclass(frozen=True, repr=False)
class DataInfo(Brief):
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
    columns: tuple[str, ...] = ()
    """Names of the input columns, in order, where the samples are rows of tables."""
    missing: bool = False
    """NaN among the inputs stands for a value that is missing; only methods that take it accept such data."""
    scaling: Scaling | Encoding | None = None
    """What was done to the inputs, scaling or encoding; new samples need the same."""
    categories: tuple[str, ...] = ()
    """Names of the columns that hold texts, each as the number of its level; preprocessing encodes them."""
    levels: tuple[tuple[str, ...], ...] = ()
    """The levels of each of these columns; known where the samples are."""
    dates: tuple[str, ...] = ()
    """Names of the columns that hold dates, as days since 1970-01-01."""
    target_center: tuple[float, ...] = ()
    """Subtracted from the regression target before training; predictions and metrics are in its own unit."""
    target_scale: tuple[float, ...] = ()
    """Its divisor, after that."""
    class_weights: tuple[float, ...] = ()
    """By which the loss of a sample of each class is multiplied."""

    def in_units(self, values: Tensor) -> Tensor:
        """Outputs or targets [n] or [n, k] in the target's own unit."""
        if not self.target_scale:
            return values
        center, scale = (torch.tensor(v, dtype=torch.float64) for v in (self.target_center, self.target_scale))
        return (values.double() * scale.to(values.device) + center.to(values.device)).to(values.dtype)

    @property
    def raw(self) -> DataInfo:
        """What samples were like before anything was done to them, as far as new ones have to be."""
        if self.scaling is None:
            return self
        if isinstance(self.scaling, Encoding):
            columns, categories = self.scaling.columns, self.scaling.categories
            levels = tuple(column.levels for column in self.scaling.table if column.texts)
            before = replace(
                self,
                shape=(len(columns),),
                columns=columns,
                categories=categories,
                levels=levels,
                dates=self.scaling.dates,
            )
        else:
            before = self
        return replace(before, missing=self.missing or self.scaling.fills, scaling=None)

    @property
    def targets(self) -> str:
        """What is predicted, in words."""
        if self.kind != "regression":
            return f"{self.outputs:,} classes"
        return "a number to predict" if self.outputs == 1 else f"{self.outputs:,} numbers to predict"

    def __post_init__(self) -> None:
        if self.outputs < 1:
            raise InputError(f"data set '{self.name}' has {self.outputs} outputs; there must be at least one.")
        if self.classes and len(self.classes) != self.outputs:
            raise InputError(
                f"data set '{self.name}' names {len(self.classes)} classes but has {self.outputs} outputs."
            )

    @property
    def tokens(self) -> bool:
        """Whether inputs are token ids, not measurements."""
        return self.kind == "text" or self.vocabulary > 0

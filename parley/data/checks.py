"""Whether samples are what the federation says they are: a form that costs nothing to check, and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parley.core.errors import InputError
from parley.data.client import ClientData, DataInfo, Kind
from parley.data.tokens import IGNORE

MOST_CLASSES = 100_000
"""Class numbers above this are taken for something else, unless a `DataInfo` says how many classes there are."""
MEASUREMENTS = 'give measurements as floats (dtype = "float32" in [data], or where the federation is made)'
"""What to do about integers that are no token ids."""
_INPUTS = (torch.float32, torch.float64, torch.int64)


@dataclass(frozen=True, slots=True)
class SampleForm:
    """What all clients of a federation have in common."""

    shape: torch.Size
    """Of one input."""
    dtype: torch.dtype
    target_shape: torch.Size
    target_dtype: torch.dtype

    def fits(self, data: ClientData) -> bool:
        x, y = data.x, data.y
        return (
            x.dtype is self.dtype
            and y.dtype is self.target_dtype
            and x.shape[1:] == self.shape
            and y.shape[1:] == self.target_shape
        )

    @classmethod
    def of(cls, data: ClientData) -> SampleForm:
        return cls(data.x.shape[1:], data.x.dtype, data.y.shape[1:], data.y.dtype)

    def made_up(self, count: int) -> ClientData:
        """So many samples of nothing but zeros, to try a model out where no others are at hand."""
        x = torch.zeros(count, *self.shape, dtype=self.dtype)
        return ClientData(x, torch.zeros(count, *self.target_shape, dtype=self.target_dtype))


def check_form(data: ClientData, form: SampleForm, who: str) -> ClientData:
    """The data, if they have the federation's form."""
    x, y = data.x, data.y
    if x.shape[1:] != form.shape or x.dtype != form.dtype:
        what, given, wanted = "inputs", (x.shape[1:], x.dtype), (form.shape, form.dtype)
    elif y.shape[1:] != form.target_shape or y.dtype != form.target_dtype:
        what, given, wanted = "targets", (y.shape[1:], y.dtype), (form.target_shape, form.target_dtype)
    else:
        return data
    raise InputError(
        f"{who} has {what} of shape {tuple(given[0])} and {_name(given[1])}, but those of the federation have shape "
        f"{tuple(wanted[0])} and {_name(wanted[1])}; all clients need the same."
    )


def check_info(form: SampleForm, info: DataInfo) -> None:
    """Whether a form is what a data set says about itself."""
    if tuple(form.shape) != tuple(info.shape):
        raise InputError(
            f"'{info.name}' says that its samples have shape {tuple(info.shape)}, but they have {tuple(form.shape)}."
        )
    if form.dtype not in _INPUTS:
        raise InputError(
            f"'{info.name}' has inputs of {_name(form.dtype)}; they must be float32 or float64, or int64 token ids."
        )
    floating = form.target_dtype.is_floating_point
    if floating != (info.kind == "regression") or not (floating or form.target_dtype == torch.int64):
        wanted = "floating" if info.kind == "regression" else "int64"
        raise InputError(
            f"'{info.name}' is {info.kind}, so its targets must be {wanted}, not {_name(form.target_dtype)}."
        )
    if floating and form.target_shape.numel() != info.outputs:
        raise InputError(f"'{info.name}' has {info.outputs} outputs, but targets of shape {tuple(form.target_shape)}.")


def check_values(data: ClientData, info: DataInfo, who: str) -> ClientData:
    """The data, if all numbers are finite and all labels and tokens are in range."""
    check_inputs(data.x, info, who)
    check_targets(data.y, info, who)
    return data


def check_targets(y: Tensor, info: DataInfo, who: str) -> None:
    """Whether targets are finite, or classes that there are."""
    if y.is_floating_point():
        if not all_finite(y):
            raise InputError(f"{who} has the target {_first(y, ~y.isfinite(), 'y')}; targets must be finite numbers.")
    elif y.numel():
        low, high = (int(end) for end in y.aminmax())
        if low >= 0 and high < info.outputs:
            return
        wrong = (y < 0) | (y >= info.outputs)
        if info.kind == "text" and y.ndim > 1:  # positions of a sequence may be left out of the loss
            wrong &= y != IGNORE
        if wrong.any():
            first_wrong = _first(y, wrong, "y")
            raise InputError(
                f"{who} has the label {first_wrong}, outside 0 to {info.outputs - 1}; number the classes from 0."
            )


def check_inputs(x: Tensor, info: DataInfo | None, who: str, missing: bool = False) -> None:
    """Whether inputs are finite, or tokens of the vocabulary (any, if it is not known yet); NaN may be `missing`."""
    if x.is_floating_point():
        if missing or (info is not None and info.missing):
            if x.isinf().any():
                raise InputError(f"{who} has the input {_first(x, x.isinf(), 'x')}; inputs must be finite or NaN.")
        elif not all_finite(x):
            hint = "; missing=True takes NaN for missing values" if x.isnan().any() and not x.isinf().any() else ""
            raise InputError(
                f"{who} has the input {_first(x, ~x.isfinite(), 'x')}; inputs must be finite numbers{hint}."
            )
    elif x.numel():
        low, high = (int(end) for end in x.aminmax())
        most = (info.vocabulary if info is not None else 0) or max(high, 0) + 1
        if low < 0 or high >= most:
            raise InputError(
                f"{who} has the token {_first(x, (x < 0) | (x >= most), 'x')}, outside 0 to {most - 1}; "
                f"integer inputs are token ids: {MEASUREMENTS}."
            )


def as_samples(x: Tensor, info: DataInfo, dtype: torch.dtype, who: str) -> Tensor:
    """New samples in the form that `info` says, or an InputError."""
    if x.ndim == 0 or tuple(x.shape[1:]) != tuple(info.shape):
        raise InputError(
            f"{who} has samples of shape {tuple(x.shape[1:])}, but the model takes samples of shape "
            f"{tuple(info.shape)}, one in each row."
        )
    if not info.tokens:
        x = x.to(dtype)
    elif x.is_floating_point():
        if not torch.equal(x, x.round()):
            raise InputError(f"{who} must hold whole numbers, the token ids of texts.")
        x = x.long()
    check_inputs(x, info, who)
    return x


def all_finite(x: Tensor) -> bool:
    """Whether no number is infinite or NaN; one pass without a mask where the sum tells."""
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())


def infer_info(name: str, form: SampleForm, largest_label: int, largest_token: int = -1) -> DataInfo:
    """What can be told from the form and the largest label and token of all clients."""
    shape = tuple(form.shape)
    if form.target_dtype.is_floating_point:
        return DataInfo(name, shape, form.target_shape.numel(), "regression", vocabulary=largest_token + 1)
    if largest_label >= MOST_CLASSES:
        raise InputError(
            f"'{name}' has the label {largest_label}, which would make as many classes; give targets to be predicted "
            "as numbers as floats, or info=DataInfo(...) if there are so many classes."
        )
    # Negative labels are refused with their place when the values are checked.
    kind: Kind = "classification" if form.dtype.is_floating_point else "text"
    return DataInfo(name, shape, max(largest_label, 0) + 1, kind, vocabulary=largest_token + 1)


def largest(x: Tensor) -> int:
    """The largest whole number; -1 for floats and empty tensors."""
    return -1 if x.is_floating_point() or not x.numel() else int(x.max())


def _first(values: Tensor, wrong: Tensor, name: str) -> str:
    index = wrong.nonzero()[0].tolist()
    return f"{values[tuple(index)].item()} at {name}{index}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

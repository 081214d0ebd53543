"""Arrays of any origin as the tensors training works on; nothing loses digits without being asked to."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.core.errors import InputError

Precision = Literal["float32", "float64"]

_FLOATS = {"float32": torch.float32, "float64": torch.float64}
_LOOKED_AT, _ENOUGH = 100_000, 256
"""Numbers of a column, and how many must be left of different ones; trees have no more bins."""
_SMALL = (torch.float16, torch.bfloat16)
_WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)


def float_type(precision: Precision) -> torch.dtype:
    """The torch dtype of a precision given by name."""
    if precision not in _FLOATS:
        raise InputError(f"dtype must be 'float32' or 'float64', not '{precision}'.")
    return _FLOATS[precision]


def precision_of(dtype: torch.dtype) -> Precision:
    """The name of a dtype's precision."""
    return "float64" if dtype == torch.float64 else "float32"


def as_inputs(values: Any, precision: Precision | None = None) -> Tensor:
    """float32 and float64 stay as they are; with a `precision` all numbers are measurements and take it.

    Half precision, bytes and booleans become float32 (exact, unscaled); other integers are token ids, int64.
    """
    tensor = as_tensor(values)
    if precision is not None:
        return tensor.to(float_type(precision))
    if tensor.dtype in _WHOLE:
        return _int64(tensor)
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(torch.float32)


def check_single(values: NDArray[np.float64], what: str) -> None:
    """Refuse numbers of which float32 would keep too few apart, unless it was asked for."""
    some = values[:_LOOKED_AT][np.isfinite(values[:_LOOKED_AT])]
    with np.errstate(over="ignore", under="ignore"):
        left = len(np.unique(some.astype(np.float32)))
    if left >= _ENOUGH:
        return
    # Without the last 12 of 52 bits: what only rounding tells apart is one value.
    apart = len(np.unique((some + 0.0).view(np.int64) + (1 << 11) >> 12))
    if apart > 2 * left:
        raise InputError(
            f"{what} has {apart} different numbers, which float32 rounds to {left}; "
            'set dtype = "float64" to keep them, or "float32" to have them rounded.'
        )


def as_targets(values: Any, inputs: Tensor | None = None) -> Tensor:
    """Integers and booleans become int64 class numbers; floats, regression targets, take the inputs' dtype."""
    tensor = as_tensor(values)
    if not tensor.is_floating_point():
        return _int64(tensor)
    return tensor.to(inputs.dtype if inputs is not None and inputs.is_floating_point() else torch.float32)


def as_tensor(values: Any) -> Tensor:
    """A dense tensor of real numbers on the CPU; shares memory where it can."""
    if isinstance(values, Tensor):
        known = (*_WHOLE, *_SMALL, torch.float32, torch.float64, torch.uint8, torch.bool)
        if values.layout != torch.strided or values.dtype not in known:
            raise InputError(
                f"samples must be plain numbers, but a {values.layout} tensor of {values.dtype} was given."
            )
        return values.detach().cpu()
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(f"samples must form an array of numbers, but do not ({error}).") from None
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise InputError(f"samples must be numbers, but an array of type {array.dtype} was given.")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    # `require` copies only what torch could not view (read-only or strided memory).
    return torch.from_numpy(np.require(native, requirements=["C", "W"]))


def _int64(tensor: Tensor) -> Tensor:
    whole = tensor.to(torch.int64)
    if tensor.dtype == torch.uint64 and bool((whole < 0).any()):
        raise InputError("samples hold whole numbers of 2^63 and more, which is too large for a class or a token.")
    return whole

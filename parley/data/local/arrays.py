"""Arrays in memory, one pair per client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from parley.core.errors import InputError
from parley.core.text import shown
from parley.data.checks import SampleForm, check_form, check_info, check_values, infer_info, largest
from parley.data.client import ClientData, DataInfo
from parley.data.convert import Precision, as_inputs, as_targets, as_tensor, check_single


def arrays_in_memory(
    clients: Mapping[str, ClientData | tuple[Any, Any]],
    test: ClientData | tuple[Any, Any] | None,
    info: DataInfo | None,
    precision: Precision | None,
    missing: bool = False,
) -> tuple[dict[str, ClientData], ClientData | None, DataInfo]:
    """Every client's samples, the test set's, and what they tell, all checked."""
    named = {str(id): value for id, value in clients.items()}
    data = {id: as_client(value, info, precision, f"client '{shown(id)}'") for id, value in named.items()}
    empty = next((id for id, value in data.items() if len(value) == 0), None)
    if not data or empty is not None:
        raise InputError(f"client '{shown(empty)}' has no samples." if data else "from_arrays was given no clients.")
    first = next(iter(data))
    form = SampleForm.of(data[first])
    for id, value in data.items():
        check_form(value, form, f"client '{shown(id)}'")
    central = None if test is None else as_client(test, info, precision, "the test set")
    pools = [*data.values(), *([central] if central is not None else [])]
    if info is None:
        info = infer_info("arrays", form, max(largest(p.y) for p in pools), max(largest(p.x) for p in pools))
    info = replace(info, missing=True) if missing else info
    check_info(form, info)
    for id, value in data.items():
        check_values(value, info, f"client '{shown(id)}'")
    return data, central, info


def as_client(value: Any, info: DataInfo | None, precision: Precision | None, who: str) -> ClientData:
    """One client's (x, y) as tensors."""
    try:
        x, y = (value.x, value.y) if isinstance(value, ClientData) else value
    except (TypeError, ValueError):
        raise InputError(f"{who} must be a pair (x, y), not {type(value).__name__}.") from None
    try:
        inputs = as_inputs(x, precision)
        if precision is None and inputs.dtype == torch.float32 and (given := as_tensor(y)).dtype == torch.float64:
            check_single(given.flatten().numpy(), "the target")
        return ClientData(inputs, as_kind(as_targets(y, inputs), inputs, info))
    except InputError as error:
        raise InputError(f"{who}: {error}") from None


def as_kind(targets: Tensor, inputs: Tensor, info: DataInfo | None) -> Tensor:
    """Targets as `info` wants them: whole floats may be classes, and whole numbers regression targets."""
    if info is None or targets.is_floating_point() == (info.kind == "regression"):
        return targets
    if info.kind == "regression":
        return as_targets(targets.double(), inputs)
    if not bool((targets == targets.round()).all()):
        raise InputError(f"targets of '{info.name}' must be class numbers, but some are not whole.")
    return targets.long()

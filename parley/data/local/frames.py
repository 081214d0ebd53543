"""One data frame with a column that says whose sample a row is."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from parley.core.errors import InputError
from parley.core.inputs import shown
from parley.data.checks import SampleForm, check_info, infer_info, largest
from parley.data.client import ClientData, DataInfo
from parley.data.convert import Precision, as_targets
from parley.data.local.labels import Task, decide
from parley.data.local.tables import column_values, columns_of, listed, read_frame, to_train_on

TITLE = "the frame"


def federation_of_frame(
    frame: Any, client: str, target: str, test: Any, kind: Task | None, precision: Precision
) -> tuple[dict[str, ClientData], ClientData | None, DataInfo]:
    """Every client's samples in the order of first appearance, the test set, and what they tell."""
    if client == target:
        raise InputError(f"'{client}' cannot be both the client and the target column.")
    owners = _owners(frame, client)
    layout = to_train_on(target, (client,))
    table = read_frame(frame, TITLE, layout, precision)
    central = None
    if test is not None:
        central = read_frame(test, "the test frame", layout, precision).ordered(table.names)
    tables = [table, *([central] if central is not None else [])]
    found = [each.labels for each in tables if each.labels is not None]
    how = decide(found, kind)
    pools = [_pool(each.x, how.numbers(labels)) for each, labels in zip(tables, found, strict=True)]
    form = SampleForm.of(pools[0])
    info = infer_info("frame", form, max(largest(pool.y) for pool in pools))
    info = DataInfo("frame", info.shape, info.outputs, info.kind, how.classes, columns=table.names)
    check_info(form, info)
    ids, first, number = np.unique(np.array(owners), return_index=True, return_inverse=True)
    rows = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
    data = {}
    for place in np.argsort(first):
        own = torch.from_numpy(rows[place])
        data[str(ids[place])] = ClientData(pools[0].x[own], pools[0].y[own])
    return data, pools[1] if len(pools) > 1 else None, info


def _pool(x: Any, y: Any) -> ClientData:
    inputs = torch.from_numpy(np.ascontiguousarray(x))
    return ClientData(inputs, as_targets(y, inputs))


def _owners(frame: Any, client: str) -> list[str]:
    keys = {str(key): key for key in columns_of(frame)}
    if client not in keys:
        raise InputError(f"{TITLE} has no column '{shown(client)}'; its columns are {listed(list(keys))}.")
    owners: list[Any] = column_values(frame[keys[client]]).tolist()
    if not owners:
        raise InputError(f"{TITLE} has no rows.")
    for row, owner in enumerate(owners):
        text = "" if owner is None or owner != owner or "NA" in type(owner).__name__ else str(owner)
        if not text.strip() or not text.isprintable():
            raise InputError(
                f"row {row}, column '{shown(client)}' of {TITLE} holds '{shown(owner)}', which is no client."
            )
        owners[row] = text
    return owners

"""One data frame, or one file, with a column that says whose sample a row is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from parley.core.errors import InputError
from parley.core.inputs import regular_file, shown
from parley.data.checks import SampleForm, check_info, infer_info, largest
from parley.data.client import ClientData, DataInfo
from parley.data.convert import Precision, as_targets, check_single
from parley.data.local.labels import Task, decide
from parley.data.local.tables import TABLES, Layout, Table, only, read_frame, read_table, to_train_on


def federation_of_frame(
    frame: Any,
    client: str,
    target: str,
    test: Any,
    kind: Task | None,
    precision: Precision | None,
    missing: bool = False,
) -> tuple[dict[str, ClientData], ClientData | None, DataInfo]:
    """Every client's samples in the order of first appearance, the test set, and what they tell."""
    if client == target:
        raise InputError(f"'{client}' cannot be both the client and the target column.")
    layout = to_train_on(target, (client,))
    owners = _owners(_read(frame, "the frame", only(client), precision))
    table = _read(frame, "the frame", layout, precision, missing)
    if len(owners) != len(table.x):
        raise InputError(f"the columns of {table.title} differ in length.")
    central = None
    if test is not None:
        central = _read(test, "the test frame", layout, precision, missing).ordered(table.names)
    tables = [table, *([central] if central is not None else [])]
    found = [each.labels for each in tables if each.labels is not None]
    how = decide(found, kind)
    pools = [_pool(each.x, how.numbers(labels)) for each, labels in zip(tables, found, strict=True)]
    form = SampleForm.of(pools[0])
    if precision is None and form.target_dtype == torch.float32:
        for each, labels in zip(tables, found, strict=True):
            check_single(how.numbers(labels), f"the target of {each.title}")
    name = shown(Path(frame).stem) if isinstance(frame, str | Path) else "frame"
    info = infer_info(name, form, max(largest(pool.y) for pool in pools))
    info = DataInfo(name, info.shape, info.outputs, info.kind, how.classes, columns=table.names, missing=missing)
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


def _read(frame: Any, title: str, layout: Layout, precision: Precision | None, missing: bool = False) -> Table:
    if not isinstance(frame, str | Path):
        return read_frame(frame, title, layout, precision, missing)
    file = Path(frame)
    if file.suffix.lower() not in TABLES:
        raise InputError(f"'{shown(file)}' must be a {' or '.join(TABLES)} file.")
    regular_file(file)
    return read_table(file, layout, precision, missing)


def _owners(table: Table) -> list[str]:
    """Whose each row is, by the one column that was read."""
    column, owners = table.labels, []
    if column is None or not len(column):
        raise InputError(f"{table.title} has no rows.")
    for row, owner in enumerate(column.values):
        text = "" if owner is None or owner != owner or "NA" in type(owner).__name__ else str(owner).strip()
        if not text or not text.isprintable():
            raise InputError(f"{column.sentence(row)}, which is no client.")
        owners.append(text)
    return owners

"""One data frame, or one file, with a column that says whose sample a row is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parley.core.errors import InputError
from parley.core.files import regular_file
from parley.core.text import shown
from parley.data.checks import SampleForm, check_info, infer_info, largest
from parley.data.client import ClientData, DataInfo
from parley.data.convert import Precision, as_targets, check_single
from parley.data.local.labels import Labels, Task, decide
from parley.data.local.tables import (
    TABLES,
    Cells,
    Layout,
    Table,
    only,
    read_frame,
    read_table,
    to_train_on,
    warn_skipped,
)


def federation_of_frame(
    frame: Any,
    client: str,
    target: str,
    test: Any,
    kind: Task | None,
    precision: Precision | None,
    cells: Cells,
) -> tuple[dict[str, ClientData], ClientData | None, DataInfo]:
    """Every client's samples in the order of first appearance, the test set, and what they tell."""
    if client == target:
        raise InputError(f"'{client}' cannot be both the client and the target column.")
    layout = to_train_on(target, (client,))
    whose = _read(frame, "the frame", only(client), precision, Cells(skip=cells.skip))
    table = _read(frame, "the frame", layout, precision, cells)
    if not cells.skip and len(whose.x) != len(table.x):
        raise InputError(f"the columns of {table.title} differ in length.")
    warn_skipped(table.title, table.skipped)
    table, owners = _owned(table, whose)
    central = None
    if test is not None:
        central = _read(test, "the test frame", layout, precision, cells).ordered(table.names)
        levels = {name: tuple(sorted({*rows_of, *central.levels[name]})) for name, rows_of in table.levels.items()}
        table, central = table.coded(levels), central.coded(levels)
    tables = [table, *([central] if central is not None else [])]
    labels_of = [each.labels for each in tables if each.labels is not None]
    how = decide(labels_of, kind)
    pools = [_pool(each.x, how.numbers(labels)) for each, labels in zip(tables, labels_of, strict=True)]
    form = SampleForm.of(pools[0])
    if precision is None and form.target_dtype == torch.float32:
        for each, labels in zip(tables, labels_of, strict=True):
            check_single(how.numbers(labels), f"the target of {each.title}")
    name = shown(Path(frame).stem) if isinstance(frame, str | Path) else "frame"
    info = infer_info(name, form, max(largest(pool.y) for pool in pools))
    info = DataInfo(
        name,
        info.shape,
        info.outputs,
        info.kind,
        how.classes,
        columns=table.names,
        missing=cells.missing,
        categories=tuple(table.levels),
        levels=tuple(table.levels.values()),
        dates=cells.dates,
    )
    check_info(form, info)
    ids, first, number = np.unique(np.array(owners), return_index=True, return_inverse=True)
    rows = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
    data = {}
    for position in np.argsort(first):
        rows_of = torch.from_numpy(rows[position])
        data[str(ids[position])] = ClientData(pools[0].x[rows_of], pools[0].y[rows_of])
    return data, pools[1] if len(pools) > 1 else None, info


def _pool(x: Any, y: Any) -> ClientData:
    inputs = torch.from_numpy(np.ascontiguousarray(x))
    return ClientData(inputs, as_targets(y, inputs))


def _read(frame: Any, title: str, layout: Layout, precision: Precision | None, cells: Cells) -> Table:
    if not isinstance(frame, str | Path):
        return read_frame(frame, title, layout, precision, cells)
    file = Path(frame)
    if file.suffix.lower() not in TABLES:
        raise InputError(f"'{shown(file)}' must be a {' or '.join(TABLES)} file.")
    regular_file(file)
    return read_table(file, layout, precision, cells)


def _owned(table: Table, whose: Table) -> tuple[Table, list[str]]:
    """The table's rows of which it is known whose they are, and whose each is."""
    owners = dict(zip(whose.rows, _owners(whose), strict=True))
    if all(row in owners for row in table.rows):
        return table, [owners[row] for row in table.rows]
    assert table.labels is not None
    kept = [n for n, row in enumerate(table.rows) if row in owners]
    rows = [table.rows[n] for n in kept]
    labels = Labels([table.labels.values[n] for n in kept], lambda n: f"row {rows[n]} of {table.title}")
    return replace(table, x=table.x[kept], labels=labels, rows=rows), [owners[row] for row in rows]


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

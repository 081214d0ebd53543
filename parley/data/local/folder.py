"""A folder with one file per client: tables or arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.core.errors import InputError
from parley.core.files import regular_file
from parley.core.text import shown
from parley.data.checks import (
    SampleForm,
    check_form,
    check_info,
    check_inputs,
    check_targets,
    check_values,
    infer_info,
    largest,
)
from parley.data.client import ClientData, DataInfo
from parley.data.convert import Precision, as_inputs, as_targets, as_tensor, check_single
from parley.data.local.array_files import read_arrays
from parley.data.local.entries import entries, warn_left_out
from parley.data.local.labels import Labels, Target, Task, decide
from parley.data.local.tables import TABLES, Cells, Table, read_table, to_train_on, warn_skipped
from parley.data.sources import Source

SUFFIXES = (*TABLES, ".npz", ".safetensors")


class Content(NamedTuple):
    """The content of one file."""

    x: Tensor
    labels: Labels
    table: Table | None
    """None for arrays, which have no names."""


@dataclass(frozen=True)
class Reader:
    """How files are read so that all clients agree."""

    target: str | None
    """The target column; None for the last one of the first table."""
    precision: Precision | None
    cells: Cells
    """What the cells of tables may hold; of arrays, whether NaN stands for a missing value."""
    columns: tuple[str, ...] = ()
    """The input columns in the order of the first table; empty before that was read."""
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of each column of texts, in all tables; empty before they were read."""

    def read(self, file: Path) -> Content:
        """One client's file."""
        regular_file(file)
        if file.suffix.lower() in TABLES:
            table = read_table(file, to_train_on(self.target), self.precision, self.cells)
            table = table.ordered(self.columns) if self.columns else table
            table = table.coded(self.levels) if self.levels else table
            assert table.labels is not None
            return Content(as_inputs(table.x, self.precision), table.labels, table)
        title = f"'{shown(file)}'"
        if named := "categories" if self.cells.categories else "dates" if self.cells.dates else "":
            raise InputError(f"{title} holds arrays, which have no columns that {named} could name.")
        x, y = read_arrays(file, "x", "y")
        if len(x) != len(y):
            raise InputError(f"{title} has {len(x)} rows of x but {len(y)} of y.")
        try:
            return Content(as_inputs(x, self.precision), Labels(_plain(y), lambda i: f"y[{i}] of {title}"), None)
        except InputError as error:
            raise InputError(f"{title}: {error}") from None


@dataclass(frozen=True)
class FolderSource(Source):
    """One file per client; sizes and form are known, samples are read on demand."""

    files: tuple[Path, ...]
    counts: Tensor
    reader: Reader
    how: Target
    info: DataInfo
    common: SampleForm
    skipped: tuple[tuple[str, ...], ...] = ()
    """Of each file the rows that were left out, a sentence each."""

    def size(self, i: int) -> int:
        return int(self.counts[i])

    def form(self) -> SampleForm:
        return self.common

    def load(self, i: int) -> ClientData:
        who = f"'{shown(self.files[i])}'"
        table = self.reader.read(self.files[i])
        data = ClientData(table.x, as_targets(self.how.numbers(table.labels), table.x))
        if len(data) != self.size(i):
            raise InputError(f"{who} has changed: it had {self.size(i)} samples and now has {len(data)}.")
        return check_values(check_form(data, self.common, who), self.info, who)


def open_folder(
    path: Path,
    target: str | None,
    kind: Task | None,
    precision: Precision | None,
    info: DataInfo | None,
    cells: Cells,
) -> tuple[FolderSource, tuple[str, ...], DataInfo]:
    """The folder's source, client ids (file stems, sorted) and what the files tell, after reading each once."""
    files, ids = client_files(path)
    source = open_files(files, shown(path.resolve().name), target, kind, precision, cells, info)
    for file, rows in zip(files, source.skipped, strict=True):
        warn_skipped(f"'{shown(file)}'", rows)
    return source, ids, source.info


def open_files(
    files: tuple[Path, ...],
    name: str,
    target: str | None,
    kind: Task | None,
    precision: Precision | None,
    cells: Cells,
    info: DataInfo | None = None,
) -> FolderSource:
    """The source whose clients are these files, after reading each once; `name` is what the data are called."""
    reader, token = Reader(target, precision, cells), -1
    levels: dict[str, set[str]] = {name: set() for name in cells.categories}
    all_labels: list[Labels] = []
    skipped: list[tuple[str, ...]] = []
    shape, dtype = torch.Size(), torch.float32
    for file in files:
        x, labels, table = reader.read(file)
        if len(x) == 0:
            raise InputError(f"'{shown(file)}' has no samples; every client needs at least one.")
        if table is not None and target is None and reader.columns and table.last != reader.target:
            raise InputError(
                f"'{shown(file)}' ends with the column '{shown(table.last)}', but the tables before it with "
                f"'{shown(reader.target)}'; name the target column."
            )
        if table is not None and not reader.columns:
            reader = replace(reader, columns=table.names, target=table.target)
        if not all_labels:
            shape, dtype = x.shape[1:], x.dtype
        elif (x.shape[1:], x.dtype) != (shape, dtype):
            raise InputError(
                f"'{shown(file)}' has inputs of shape {tuple(x.shape[1:])} and {x.dtype}, but '{shown(files[0])}' "
                f"has {tuple(shape)} and {dtype}; all clients need the same."
            )
        for column, texts in (table.levels if table is not None else {}).items():
            levels[column] |= set(texts)
        check_inputs(x, info, f"'{shown(file)}'", cells.missing)
        token = max(token, largest(x))
        all_labels.append(labels)
        skipped.append(() if table is None else table.skipped)
    if info is not None:
        kind = "regression" if info.kind == "regression" else "classification"
    how = decide(all_labels, kind)
    numbers = [torch.from_numpy(how.numbers(labels)) for labels in all_labels]
    form = SampleForm(shape, dtype, numbers[0].shape[1:], as_targets(numbers[0][:1], torch.empty(0, dtype=dtype)).dtype)
    if info is None:
        info = infer_info(name, form, max(map(largest, numbers)), token)
        info = replace(info, classes=how.classes, columns=reader.columns)
    if cells.categories:
        reader = replace(reader, levels={column: tuple(sorted(texts)) for column, texts in levels.items()})
        info = replace(info, categories=cells.categories, levels=tuple(reader.levels.values()))
    info = replace(info, missing=info.missing or cells.missing, dates=cells.dates)
    check_info(form, info)
    for file, y in zip(files, numbers, strict=True):
        if y.shape[1:] != form.target_shape:
            raise InputError(
                f"'{shown(file)}' has targets of shape {tuple(y.shape[1:])}, but '{shown(files[0])}' has "
                f"{tuple(form.target_shape)}; all clients need the same."
            )
        check_targets(y, info, f"'{shown(file)}'")
        if precision is None and form.target_dtype == torch.float32:
            for column in y.double().reshape(len(y), -1).T.numpy():
                check_single(column, f"the target of '{shown(file)}'")
    counts = torch.tensor([len(y) for y in numbers])
    return FolderSource(files, counts, reader, how, info, form, tuple(skipped))


def client_files(path: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The files of a folder in the order of their names, and the clients they belong to."""
    listed = entries(path, "one file per client")
    files = tuple(file for file in listed if file.suffix.lower() in SUFFIXES)
    if not files:
        raise InputError(f"'{shown(path)}' has no {', '.join(SUFFIXES)} files; put one file per client there.")
    warn_left_out(path, [entry for entry in listed if entry.suffix.lower() not in SUFFIXES], SUFFIXES)
    ids: dict[str, Path] = {}
    for file in files:
        regular_file(file)
        if not file.stem.isprintable():
            raise InputError(f"'{shown(file)}' has control characters in its name, which becomes the client's id.")
        if file.stem in ids:
            raise InputError(f"'{shown(path)}' has two files for client '{file.stem}'; keep one.")
        ids[file.stem] = file
    return files, tuple(ids)


def _plain(y: NDArray[Any] | Tensor) -> NDArray[Any]:
    """Targets of an array file: texts, int64 or float64."""
    if not isinstance(y, Tensor) and y.dtype.kind == "U" and y.ndim == 1:
        return y
    tensor = as_tensor(y)
    return np.asarray((tensor.double() if tensor.is_floating_point() else as_targets(tensor)).numpy())

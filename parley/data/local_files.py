"""The user's own data: torch data sets, and folders with one file per client."""

from __future__ import annotations

import csv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from parley.core.errors import InputError
from parley.data.client import ClientData, DataInfo, as_inputs, as_targets, infer_info
from parley.data.sources import Source

SUFFIXES = (".npz", ".csv", ".safetensors")


@dataclass(frozen=True)
class TorchSource(Source):
    """One map-style torch data set per client, each yielding (input, target)."""

    clients: tuple[TorchDataset[Any], ...]

    def __post_init__(self) -> None:
        for i, client in enumerate(self.clients):
            if isinstance(client, IterableDataset) or not hasattr(client, "__len__"):
                raise InputError(f"data set number {i} has no length; a client needs a map-style torch data set.")
            if self.size(i) == 0:
                raise InputError(f"data set number {i} is empty; every client needs at least one sample.")

    def size(self, i: int) -> int:
        return len(self.clients[i])  # type: ignore[arg-type]

    def load(self, i: int) -> ClientData:
        client = self.clients[i]
        if isinstance(client, TensorDataset) and len(client.tensors) == 2:
            return ClientData(as_inputs(client.tensors[0]), as_targets(client.tensors[1]))
        try:
            samples = [client[row] for row in range(self.size(i))]
            x = torch.stack([as_inputs(x) for x, _ in samples])
            y = torch.stack([as_targets(y) for _, y in samples])
        except (TypeError, ValueError, RuntimeError) as error:
            reason = f"its samples cannot be stacked as (input, target) pairs ({error})"
            raise InputError(f"data set number {i}: {reason}; give tensors or arrays of one shape.") from error
        return ClientData(x, y)


@dataclass(frozen=True)
class FolderSource(Source):
    """One file per client; sizes are known, inputs are read on demand."""

    files: tuple[Path, ...]
    counts: Tensor
    target: str | None
    classes: tuple[str, ...]

    def size(self, i: int) -> int:
        return int(self.counts[i])

    def load(self, i: int) -> ClientData:
        x, y = _read(self.files[i], self.target)
        return ClientData(as_inputs(x), as_targets(_numbered(y, self.classes, self.files[i])))


def scan(name: str, source: Source, clients: int) -> DataInfo:
    """What can be told of a source by reading every client once."""
    first = source.load(0)
    if first.y.is_floating_point():
        return infer_info(name, first, -1)
    return infer_info(name, first, max(int(source.load(i).y.max()) for i in range(clients)))


def open_folder(path: Path, target: str | None) -> tuple[FolderSource, tuple[str, ...], DataInfo]:
    """The folder's source, client ids (file stems, sorted) and what the files tell about the data."""
    if not path.is_dir():
        raise InputError(f"'{path}' is not a folder; give the folder that has one file per client.")
    files = tuple(sorted(file for file in path.iterdir() if file.suffix in SUFFIXES))
    if not files:
        raise InputError(f"'{path}' has no {', '.join(SUFFIXES)} files; put one file per client there.")
    ids = tuple(file.stem for file in files)
    doubled = next((id for id in ids if ids.count(id) > 1), None) if len(set(ids)) < len(ids) else None
    if doubled is not None:
        raise InputError(f"'{path}' has two files for client '{doubled}'; keep one.")
    targets = [_read(file, target, only_y=True)[1] for file in files]
    empty = next((file for file, y in zip(files, targets, strict=True) if len(y) == 0), None)
    if empty is not None:
        raise InputError(f"'{empty}' has no samples; every client needs at least one.")
    classes: tuple[str, ...] = ()
    if any(y.dtype.kind == "U" for y in targets):
        classes = tuple(sorted({str(label) for y in targets for label in y}))
    source = FolderSource(files, torch.tensor([len(y) for y in targets]), target, classes)
    numbers = [_numbered(y, classes, file) for y, file in zip(targets, files, strict=True)]
    largest = -1 if numbers[0].dtype.kind == "f" else max(int(y.max()) for y in numbers)
    info = infer_info(path.resolve().name, source.load(0), largest)
    return source, ids, DataInfo(info.name, info.shape, info.outputs, info.kind, classes)


def _numbered(y: np.ndarray, classes: tuple[str, ...], file: Path) -> np.ndarray:
    if not classes:
        return y
    labels = y.astype(str)
    unknown = set(labels.tolist()) - set(classes)
    if unknown:
        raise InputError(f"'{file}' has changed: its label '{unknown.pop()}' was not there when the folder was opened.")
    return np.searchsorted(np.array(classes), labels)


def _read(file: Path, target: str | None, only_y: bool = False) -> tuple[Any, np.ndarray]:
    """(x, y) of one file; x may be missing with `only_y`."""
    try:
        if file.suffix == ".csv":
            return _read_csv(file, target)
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return None if only_y else arrays["x"], arrays["y"]
        from safetensors import safe_open

        with safe_open(file, framework="pt") as tensors:
            return None if only_y else tensors.get_tensor("x"), tensors.get_tensor("y").numpy()
    except InputError:
        raise
    except KeyError as error:
        raise InputError(f"'{file}' lacks the array {error}; it must hold 'x' and 'y'.") from error
    except OSError as error:
        raise InputError(f"'{file}' cannot be read: {error}.") from error
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"'{file}' is not a usable {file.suffix} file ({error}).") from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError":
            raise
        missing = "does not contain" in str(error)
        hint = "it must hold 'x' and 'y'" if missing else "write it again"
        raise InputError(f"'{file}' is not a usable safetensors file ({error}); {hint}.") from error


def _read_csv(file: Path, target: str | None) -> tuple[np.ndarray, np.ndarray]:
    with file.open(newline="", encoding="utf-8-sig") as stream:
        header, *rows = list(csv.reader(stream)) or [[]]
    rows = [row for row in rows if row]
    if len(header) < 2:
        raise InputError(f"'{file}' needs a header line with at least two columns.")
    if target is not None and target not in header:
        raise InputError(f"'{file}' has no column '{target}'; its columns are {', '.join(header)}.")
    ragged = next((n for n, row in enumerate(rows, 2) if len(row) != len(header)), None)
    if ragged is not None:
        raise InputError(f"line {ragged} of '{file}' does not have {len(header)} columns.")
    column = len(header) - 1 if target is None else header.index(target)
    cells = np.array(rows, dtype=str).reshape(len(rows), len(header))
    x = np.delete(cells, column, axis=1).astype(np.float32)
    return x, _typed(cells[:, column])


def _typed(column: np.ndarray) -> np.ndarray:
    """Whole numbers as int64, other numbers as float32, anything else as text."""
    for kind in (np.int64, np.float32):
        try:
            return column.astype(kind)
        except ValueError:
            continue
    return column

"""Predictions of a trained model for new samples, from file to file."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from parley.core.errors import InputError
from parley.core.files import write_atomically
from parley.data.client import DataInfo, as_inputs
from parley.engine.run import Run

BATCH = 1000


def predict_file(
    run: Run, source: Path, out: Path, *, target: str | None = None, best: bool = False, client: str | None = None
) -> int:
    """Write one line per sample of `source` to the .csv file `out`; returns how many.

    `source`: .npz or .safetensors with `x`, or .csv with a header, in the form the training data had; a column called
    `target`, or one column too many at the end, is left out. Classes come with the probability of each. `client`: with
    its own model (see `Run.personal`).
    """
    info = run.task.info
    x = read_inputs(source, info, target)
    outputs = torch.cat([run.predict(batch, best=best, client=client) for batch in x.split(BATCH)])
    try:
        write_atomically(out, predictions_text(outputs, info).encode())
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}.") from None
    return len(outputs)


def read_inputs(path: Path, info: DataInfo, target: str | None = None) -> Tensor:
    """Samples [n, ...] of the shape the model was trained on."""
    if path.suffix not in (".csv", ".npz", ".safetensors"):
        raise InputError(f"{path} must be a .csv, .npz or .safetensors file.")
    if not path.is_file():
        raise InputError(f"there is no file {path}.")
    try:
        if path.suffix == ".csv":
            x = _from_csv(path, info, target)
        else:
            x = as_inputs(_from_npz(path) if path.suffix == ".npz" else _from_safetensors(path))
    except (OSError, ValueError, zipfile.BadZipFile, SafetensorError, EOFError) as error:
        raise InputError(f"{path} cannot be read as {path.suffix}: {str(error).rstrip('.')}.") from None
    if len(x) == 0 or tuple(x.shape[1:]) != tuple(info.shape):
        raise InputError(
            f"{path} holds {len(x)} samples of shape {tuple(x.shape[1:])}, but the model takes samples of shape "
            f"{tuple(info.shape)}."
        )
    if info.kind != "text":
        return x.float()
    if x.is_floating_point() and not torch.equal(x, x.round()):
        raise InputError(f"{path} must hold whole numbers, the token ids of texts.")
    return x.long()


def predictions_text(outputs: Tensor, info: DataInfo) -> str:
    """As CSV: sample, prediction and each class's probability, or sample and value(s)."""
    outputs = outputs.reshape(len(outputs), -1) if info.kind == "regression" else outputs
    if outputs.ndim != 2:
        raise InputError("this model predicts a sequence for each sample, which a table cannot hold.")
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    if info.kind == "regression":
        width = outputs.shape[1]
        table.writerow(["sample", *([f"value {k}" for k in range(width)] if width > 1 else ["value"])])
        table.writerows([n, *row] for n, row in enumerate(outputs.tolist()))
        return text.getvalue()
    names = info.classes or tuple(str(k) for k in range(outputs.shape[1]))
    shares = torch.softmax(outputs.double(), dim=1)
    table.writerow(["sample", "prediction", *(f"p({name})" for name in names)])
    for n, (chosen, row) in enumerate(zip(shares.argmax(dim=1).tolist(), shares.tolist(), strict=True)):
        table.writerow([n, names[chosen], *(f"{share:.6g}" for share in row)])
    return text.getvalue()


def _from_csv(path: Path, info: DataInfo, target: str | None) -> Tensor:
    with path.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = [row for row in csv.reader(file) if row] or [[]]
    wanted = int(np.prod(info.shape))
    kept = [place for place, name in enumerate(header) if name != target]
    kept = kept[:-1] if len(kept) == wanted + 1 else kept
    ragged = next((line for line, row in enumerate(rows, 2) if len(row) != len(header)), None)
    if ragged is not None:
        raise ValueError(f"line {ragged} does not have {len(header)} columns")
    if len(kept) != wanted:
        raise ValueError(f"it has {len(kept)} input columns, but the model takes {wanted}")
    values = np.array([[row[place] for place in kept] for row in rows], dtype=np.float32)
    return torch.from_numpy(values).reshape(-1, *info.shape)


def _from_npz(path: Path) -> np.ndarray:
    with np.load(path, allow_pickle=False) as arrays:
        if "x" not in arrays:
            raise ValueError("it has no array 'x'")
        return np.asarray(arrays["x"])


def _from_safetensors(path: Path) -> Tensor:
    with safe_open(path, framework="pt") as tensors:
        if "x" not in tensors.keys():  # noqa: SIM118 (not a dictionary)
            raise ValueError("it has no tensor 'x'")
        return torch.as_tensor(tensors.get_tensor("x"))

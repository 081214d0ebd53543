"""Predictions of a trained model for new samples, from file to file."""

from __future__ import annotations

import csv
import io
import math
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from parley.core.errors import InputError
from parley.core.files import regular_file, write_atomically
from parley.core.text import shown
from parley.data.checks import as_samples
from parley.data.client import DataInfo
from parley.data.convert import Precision, as_inputs, float_type
from parley.data.local.array_files import read_arrays
from parley.data.local.folder import SUFFIXES
from parley.data.local.tables import TABLES, Cells, raw_rows, read_table, to_predict
from parley.engine.run import Run
from parley.training.pooled import Method

BATCH = 1000


def predict_file(
    run: Run,
    source: Path,
    out: Path,
    *,
    target: str | None = None,
    best: bool = False,
    client: str | None = None,
    recalibrate: Method | None = None,
) -> int:
    """Write one line per sample of `source` to the .csv file `out`; returns how many.

    `source`: a table (.csv, .parquet) or arrays with `x` (.npz, .safetensors), in the form the training data had before
    they were standardised. Columns are found by the names the training tables had, and others left out; after training
    on arrays they count by position, without the column `target` or one too many at the end. Classes come with the
    probability of each. `client`: with its own model (see `Run.personal`).
    """
    if out.suffix.lower() != ".csv":
        raise InputError(f"predictions are written as .csv, not to '{shown(out)}'.")
    info = run.task.info
    x = read_inputs(source, info, target, "float64" if run.dtype == torch.float64 else "float32")
    predictor = partial(run.predict, best=best, client=client, recalibrate=recalibrate)
    outputs = torch.cat([predictor(batch) for batch in x.split(BATCH)])
    write_atomically(out, predictions_text(outputs, info).encode())
    return len(outputs)


def read_inputs(path: Path, info: DataInfo, target: str | None = None, precision: Precision = "float32") -> Tensor:
    """Raw samples [n, ...] of the shape the model was trained on, for `Run.predict`."""
    kind = path.suffix.lower()
    raw = info.raw
    if target is not None and target in raw.columns:
        raise InputError(f"the column '{shown(target)}' is an input of the model, so it cannot be left out.")
    if kind not in SUFFIXES:
        raise InputError(f"'{shown(path)}' must be a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file.")
    regular_file(path)
    if kind in TABLES:
        layout = to_predict(raw.columns, math.prod(raw.shape), target)
        table = read_table(path, layout, precision, Cells.of(raw))
        x = raw_rows(table, info).reshape(-1, *raw.shape)
    else:
        x = as_inputs(read_arrays(path, "x")[0])
    if len(x) == 0:
        raise InputError(f"'{shown(path)}' has no samples to predict.")
    return as_samples(x, raw, float_type(precision), f"'{shown(path)}'")


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
    names = tuple(map(shown, info.classes)) or tuple(str(k) for k in range(outputs.shape[1]))
    shares = torch.softmax(outputs.double(), dim=1)
    table.writerow(["sample", "prediction", *(f"p({name})" for name in names)])
    for n, (chosen, row) in enumerate(zip(shares.argmax(dim=1).tolist(), shares.tolist(), strict=True)):
        table.writerow([n, names[chosen], *(f"{share:.6g}" for share in row)])
    return text.getvalue()

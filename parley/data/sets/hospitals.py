"""Two tables by hospital, read and split as FLamby does (Ogier du Terrail et al., 2022).

Who has which patients is real. The files are put into the cache by hand.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.core.errors import InputError
from parley.data.client import ClientData, DataInfo
from parley.data.dataset import Dataset
from parley.data.formats import read_lines, readable
from parley.data.sets.base import dataset

Array = NDArray[np.float64]
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
_EMPTY, _CATEGORIES = (10, 11, 12), (2, 6)
"""Columns that most hospitals leave empty, and those that hold categories."""
_TRAINING, _SPLIT_SEED = 0.66, 43


@dataset(
    "heart-disease",
    source="https://archive.ics.uci.edu/dataset/45/heart+disease",
    license="CC BY 4.0",
    manual="put UCI's processed.cleveland.data, .hungarian.data, .switzerland.data and .va.data there.",
)
def heart_disease(scaled_by: Literal["hospital", "pooled"] = "hospital") -> Dataset:
    """740 patients of four hospitals (natural clients), 13 inputs: heart disease or none; FLamby's split.

    Patients with empty cells, and three columns that most hospitals leave empty, are left out. Inputs are standardised
    by the training patients of their own hospital, or of all (`scaled_by="pooled"`).
    """
    if scaled_by not in ("hospital", "pooled"):
        raise InputError(f"heart-disease is standardised by 'hospital' or 'pooled', not '{scaled_by}'.")
    tables = [_patients(heart_disease.folder() / f"processed.{name}.data") for name in HOSPITALS]
    groups = np.repeat(np.arange(len(HOSPITALS)), [len(table) for table in tables])
    table, train = np.concatenate(tables), np.concatenate([_training(table[:, -1] > 0) for table in tables])
    x = _encoded(table[:, :-1])
    alike = groups if scaled_by == "hospital" else np.zeros_like(groups)
    for rows in (alike == owner for owner in np.unique(alike)):
        seen = x[rows & train]
        x[rows] = (x[rows] - seen.mean(0)) / (seen.std(0, ddof=1) + 1e-9)
    y = torch.from_numpy((table[:, -1] > 0).astype(np.int64))
    info = heart_disease.info((x.shape[1],), 2, "classification", ("healthy", "diseased"))
    return _split(info, x, y, train, groups, HOSPITALS)


@dataset(
    "tcga-brca",
    source="https://portal.gdc.cancer.gov/projects/TCGA-BRCA",
    license="GDC data access policy",
    manual="put brca.csv and train_test_split.csv of FLamby's Fed-TCGA-BRCA there.",
)
def tcga_brca() -> Dataset:
    """1,088 breast cancers of six regions (natural clients), 39 inputs: days of survival; FLamby's split.

    The target is the number of days until death, or minus the number of days until the patient was last seen alive.
    Inputs are as they are: age in years and columns of 0 and 1.
    """
    folder = tcga_brca.folder()
    fold = {row["pid"]: row["fold2"] for row in _rows(folder / "train_test_split.csv")}
    patients = [row for row in _rows(folder / "brca.csv") if row["pid"] in fold]
    with readable(folder / "brca.csv", "FLamby"):
        values = np.array([[float(cell) for cell in list(row.values())[1:]] for row in patients])
        parts, owners = zip(*(fold[row["pid"]].split("_") for row in patients), strict=True)
        groups, train = np.array([int(owner) for owner in owners]), np.array(parts) == "train"
        x, event, days = values[:, :-2], values[:, -2], values[:, -1]
        if x.shape[1] != 39 or not 0 <= groups.min() <= groups.max() < len(REGIONS):
            raise ValueError(f"it has {x.shape[1]} inputs and regions up to {groups.max()}")
    y = torch.from_numpy(np.where(event > 0, days, -days)).float()
    return _split(tcga_brca.info((39,), 1, "regression"), x, y, train, groups, REGIONS)


def _patients(file: Path) -> Array:
    """The rows without an empty cell, without the columns that are mostly empty."""
    rows = [line.split(",") for line in read_lines(file) if line.strip()]
    with readable(file, "UCI"):
        kept = [[cell for column, cell in enumerate(row) if column not in _EMPTY] for row in rows]
        return np.array([[float(cell) for cell in row] for row in kept if "?" not in row]).reshape(-1, 11)


def _training(ill: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which patients of a hospital train: by class where both have more than two, as FLamby draws them."""
    from sklearn.model_selection import train_test_split

    counts = np.bincount(ill, minlength=2)
    chosen, _ = train_test_split(
        np.arange(len(ill)),
        test_size=1.0 - _TRAINING,
        train_size=_TRAINING,
        random_state=_SPLIT_SEED,
        stratify=ill if counts.min() > 2 else None,
    )
    return np.isin(np.arange(len(ill)), chosen)


def _encoded(x: Array) -> Array:
    """Categories as columns of 0 and 1, behind the others and without each one's smallest."""
    plain = np.delete(x, _CATEGORIES, axis=1)
    flags = [x[:, [column]] == np.unique(x[:, column])[1:] for column in _CATEGORIES]
    return np.concatenate([plain, *flags], axis=1)


def _rows(file: Path) -> list[dict[str, str]]:
    with readable(file, "CSV"):
        return list(csv.DictReader(read_lines(file), strict=True))


def _split(
    info: DataInfo, x: Array, y: Tensor, train: NDArray[np.bool_], groups: NDArray[np.int64], names: tuple[str, ...]
) -> Dataset:
    inputs, seen = torch.from_numpy(x).float(), torch.from_numpy(train)
    return Dataset(
        info, inputs[seen], y[seen], ClientData(inputs[~seen], y[~seen]), groups[train], names, groups[~train]
    )

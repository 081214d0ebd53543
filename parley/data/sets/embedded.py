"""Real data sets that come with scikit-learn: no download.

They are read from its files as it reads them, without importing it, which takes a second. Each holds out a fixed random
fifth as its test set (`test_fraction`) and is standardised by the other samples.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parley.core.errors import InputError
from parley.core.key import Key
from parley.data.client import ClientData, Kind
from parley.data.dataset import Dataset
from parley.data.federation import check_fraction
from parley.data.sets.base import Loader, dataset, standardise

UCI = "CC BY 4.0"


@dataset("digits", source="https://archive.ics.uci.edu/dataset/80", license=UCI)
def digits(test_fraction: float = 0.2) -> Dataset:
    """1,797 handwritten digits of 8x8 pixels, ten classes (UCI Optical Recognition, test part)."""
    values = np.loadtxt(_file("digits.csv.gz"), delimiter=",")
    images, labels = values[:, :-1].reshape(-1, 1, 8, 8), values[:, -1]
    return _pooled(digits, images, labels, "classification", tuple("0123456789"), test_fraction)


@dataset("iris", source="https://archive.ics.uci.edu/dataset/53", license=UCI)
def iris(test_fraction: float = 0.2) -> Dataset:
    """150 iris flowers, 4 measurements, three species."""
    return _table(iris, "iris.csv", test_fraction)


@dataset("wine", source="https://archive.ics.uci.edu/dataset/109", license=UCI)
def wine(test_fraction: float = 0.2) -> Dataset:
    """178 wines, 13 chemical measurements, three growers."""
    return _table(wine, "wine_data.csv", test_fraction)


@dataset("breast-cancer", source="https://archive.ics.uci.edu/dataset/17", license=UCI)
def breast_cancer(test_fraction: float = 0.2) -> Dataset:
    """569 breast tumours, 30 measurements of cell nuclei, malignant or benign (Wisconsin, diagnostic)."""
    return _table(breast_cancer, "breast_cancer.csv", test_fraction)


@dataset(
    "diabetes",
    source="https://www4.stat.ncsu.edu/~boos/var.select/diabetes.html",
    license="published with the paper; as distributed by scikit-learn",
)
def diabetes(test_fraction: float = 0.2) -> Dataset:
    """442 patients, 10 measurements, disease progression after a year: regression, target standardised."""
    x, y = np.loadtxt(_file("diabetes_data_raw.csv.gz")), np.loadtxt(_file("diabetes_target.csv.gz"))
    x = (x - x.mean(axis=0)) / x.std(axis=0) / len(x) ** 0.5  # scikit-learn's columns have length 1
    return _pooled(diabetes, x, y, "regression", (), test_fraction)


def _table(loader: Loader[Any], file: str, test_fraction: float) -> Dataset:
    """A file whose first line is: rows, columns, the names of the classes; the last column is the class."""
    path = _file(file)
    with path.open(encoding="utf-8") as lines:
        _, _, *classes = lines.readline().strip().split(",")
    values = np.loadtxt(path, delimiter=",", skiprows=1)
    return _pooled(loader, values[:, :-1], values[:, -1], "classification", tuple(classes), test_fraction)


def _file(name: str) -> Path:
    """A data file of the installed scikit-learn."""
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder) / "datasets" / "data" / name
        if path.is_file():
            return path
    raise InputError(f"the data set's file '{name}' comes with scikit-learn, which is not installed or lacks it.")


def _pooled(
    loader: Loader[Any],
    x: NDArray[Any],
    y: NDArray[Any],
    kind: Kind,
    classes: tuple[str, ...],
    test_fraction: float,
) -> Dataset:
    check_fraction("test_fraction", test_fraction)
    order = Key(0).fold(loader.name).numpy().permutation(len(x))
    held = min(round(test_fraction * len(x)), len(x) - 1)
    train, test = np.sort(order[held:]), np.sort(order[:held])
    # Pixels share one scale; the columns of a table have one each.
    inputs, test_inputs = standardise(x[train], x[test], tuple(range(x.ndim)) if x.ndim > 2 else (0,))
    if kind == "regression":
        targets, test_targets = standardise(y[train], y[test], (0,))
    else:
        targets, test_targets = (torch.from_numpy(y[rows].astype(np.int64)) for rows in (train, test))
    info = loader.info(tuple(inputs.shape[1:]), len(classes) or 1, kind, classes)
    return Dataset(info, inputs, targets, ClientData(test_inputs, test_targets) if held else None)

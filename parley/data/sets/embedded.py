"""Real data sets that come with scikit-learn: no download.

Each holds out a fixed random fifth as its test set (`test_fraction`) and is standardised by the other samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parley.core.key import Key
from parley.data.client import ClientData, Kind
from parley.data.dataset import Dataset
from parley.data.federation import check_fraction
from parley.data.sets.base import Loader, dataset, standardise

UCI = "CC BY 4.0"


@dataset("digits", source="https://archive.ics.uci.edu/dataset/80", license=UCI)
def digits(test_fraction: float = 0.2) -> Dataset:
    """1,797 handwritten digits of 8x8 pixels, ten classes (UCI Optical Recognition, test part)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    classes = tuple(map(str, bunch.target_names))
    return _pooled(digits, bunch.images[:, None], bunch.target, "classification", classes, test_fraction)


@dataset("iris", source="https://archive.ics.uci.edu/dataset/53", license=UCI)
def iris(test_fraction: float = 0.2) -> Dataset:
    """150 iris flowers, 4 measurements, three species."""
    from sklearn.datasets import load_iris

    return _table(iris, load_iris(), test_fraction)


@dataset("wine", source="https://archive.ics.uci.edu/dataset/109", license=UCI)
def wine(test_fraction: float = 0.2) -> Dataset:
    """178 wines, 13 chemical measurements, three growers."""
    from sklearn.datasets import load_wine

    return _table(wine, load_wine(), test_fraction)


@dataset("breast-cancer", source="https://archive.ics.uci.edu/dataset/17", license=UCI)
def breast_cancer(test_fraction: float = 0.2) -> Dataset:
    """569 breast tumours, 30 measurements of cell nuclei, malignant or benign (Wisconsin, diagnostic)."""
    from sklearn.datasets import load_breast_cancer

    return _table(breast_cancer, load_breast_cancer(), test_fraction)


@dataset(
    "diabetes",
    source="https://www4.stat.ncsu.edu/~boos/var.select/diabetes.html",
    license="published with the paper; as distributed by scikit-learn",
)
def diabetes(test_fraction: float = 0.2) -> Dataset:
    """442 patients, 10 measurements, disease progression after a year: regression, target standardised."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    return _pooled(diabetes, bunch.data, bunch.target, "regression", (), test_fraction)


def _table(loader: Loader[Any], bunch: Any, test_fraction: float) -> Dataset:
    classes = tuple(map(str, bunch.target_names))
    return _pooled(loader, bunch.data, bunch.target, "classification", classes, test_fraction)


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

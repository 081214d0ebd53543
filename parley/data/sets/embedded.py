"""Real data sets that come with scikit-learn: no download."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from parley.data.client import ClientData, DataInfo, Kind
from parley.data.dataset import Dataset
from parley.data.sets.base import dataset

UCI = "CC BY 4.0"


@dataset(
    "digits",
    title="1,797 handwritten digits of 8x8 pixels",
    source="https://archive.ics.uci.edu/dataset/80 (UCI test part, as embedded in scikit-learn)",
    license=UCI,
)
def digits(test_fraction: float = 0.2) -> Dataset:
    """Handwritten digits, [n, 1, 8, 8], ten classes; every fifth sample is held out as the test set by default."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = bunch.images[:, None]
    return _pooled("digits", x, bunch.target, "classification", tuple("0123456789"), test_fraction, per_feature=False)


def _pooled(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    kind: Kind,
    classes: tuple[str, ...],
    test_fraction: float,
    per_feature: bool = True,
) -> Dataset:
    """Holds out evenly spaced rows of a fixed shuffle and standardises by the training rows."""
    from parley.core.errors import InputError
    from parley.core.key import Key
    from parley.data.federation import check_fraction

    check_fraction("test_fraction", test_fraction)
    order = Key(0).fold(name).numpy().permutation(len(x))
    held = round(test_fraction * len(x))
    train, test = np.sort(order[held:]), np.sort(order[:held])
    if not len(train):
        raise InputError(f"test_fraction={test_fraction} leaves '{name}' without training samples.")
    axis: Any = 0 if per_feature else None
    inputs = torch.from_numpy((x - x[train].mean(axis=axis)) / x[train].std(axis=axis)).float()
    targets = torch.from_numpy(y).to(torch.float32 if kind == "regression" else torch.int64)
    info = DataInfo(name, tuple(inputs.shape[1:]), len(classes) or 1, kind, classes, *_origin(name))
    central = ClientData(inputs[test], targets[test]) if held else None
    return Dataset(info, inputs[train], targets[train], central)


def _origin(name: str) -> tuple[str, str]:
    from parley.data.sets.base import datasets

    loader = datasets[name]
    return loader.source, loader.license

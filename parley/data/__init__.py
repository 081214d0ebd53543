"""Data sets, partitioners and federations."""

from typing import Any

from parley.data.client import ClientData, DataInfo
from parley.data.dataset import Dataset
from parley.data.federation import Federation
from parley.data.partition import (
    IID,
    Dirichlet,
    Natural,
    Pachinko,
    Partition,
    Partitioner,
    QuantitySkew,
    Shards,
    SHomogeneity,
    Sorted,
    partitioner,
    partitioners,
)
from parley.data.sets.base import Loader, dataset, datasets
from parley.data.sets.embedded import digits

__all__ = [
    "IID",
    "ClientData",
    "DataInfo",
    "Dataset",
    "Dirichlet",
    "Federation",
    "Loader",
    "Natural",
    "Pachinko",
    "Partition",
    "Partitioner",
    "QuantitySkew",
    "SHomogeneity",
    "Shards",
    "Sorted",
    "dataset",
    "datasets",
    "digits",
    "load",
    "partitioner",
    "partitioners",
]


def load(name: str, **options: Any) -> Dataset:
    """Loads a data set by name; `options` are those of its loading function."""
    return datasets[name](**options)

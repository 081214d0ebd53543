"""Data sets, partitioners and federations."""

from typing import Any

from parley.data.client import ClientData, DataInfo
from parley.data.dataset import Dataset
from parley.data.federation import Federation
from parley.data.fetch import cache_dir
from parley.data.label_spread import describe
from parley.data.partition import (
    IID,
    Dirichlet,
    Fixed,
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
from parley.data.sets.cifar import cifar10, cifar100
from parley.data.sets.embedded import breast_cancer, diabetes, digits, iris, wine
from parley.data.sets.emnist import emnist_digits, emnist_letters
from parley.data.sets.hospitals import heart_disease, tcga_brca
from parley.data.sets.leaf import femnist
from parley.data.sets.mnist import fashion_mnist, mnist, mnist_writers
from parley.data.sets.multinli import multinli
from parley.data.sets.shakespeare import shakespeare
from parley.data.sets.svhn import svhn

__all__ = [
    "IID",
    "ClientData",
    "DataInfo",
    "Dataset",
    "Dirichlet",
    "Federation",
    "Fixed",
    "Loader",
    "Natural",
    "Pachinko",
    "Partition",
    "Partitioner",
    "QuantitySkew",
    "SHomogeneity",
    "Shards",
    "Sorted",
    "breast_cancer",
    "cache_dir",
    "cifar10",
    "cifar100",
    "dataset",
    "datasets",
    "describe",
    "diabetes",
    "digits",
    "emnist_digits",
    "emnist_letters",
    "fashion_mnist",
    "femnist",
    "heart_disease",
    "iris",
    "load",
    "mnist",
    "mnist_writers",
    "multinli",
    "partitioner",
    "partitioners",
    "shakespeare",
    "svhn",
    "tcga_brca",
    "wine",
]


def load(name: str, **options: Any) -> Dataset:
    """Loads a data set by name; `options` are those of its loading function."""
    return datasets[name](**options)

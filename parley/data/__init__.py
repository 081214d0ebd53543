"""Data sets, partitioners and federations. A data set's module loads when somebody asks for it."""

from typing import Any

from parley.core.lazy import lazy
from parley.data.dataset import Dataset
from parley.data.sets.base import dataset as dataset
from parley.data.sets.base import datasets

_HOME, __getattr__, __dir__ = lazy(__name__)

__all__ = sorted([*_HOME, "load"])

_DATA_SETS = {
    "parley.data.sets.cifar": "cifar10 cifar100",
    "parley.data.sets.embedded": "breast-cancer diabetes digits iris wine",
    "parley.data.sets.emnist": "emnist-digits emnist-letters",
    "parley.data.sets.hospitals": "heart-disease tcga-brca",
    "parley.data.sets.leaf": "femnist",
    "parley.data.sets.mnist": "fashion-mnist mnist mnist-writers",
    "parley.data.sets.multinli": "multinli",
    "parley.data.sets.shakespeare": "shakespeare",
    "parley.data.sets.svhn": "svhn",
}
datasets.homes |= {name: module for module, names in _DATA_SETS.items() for name in names.split()}


def load(name: str, **options: Any) -> Dataset:
    """Loads a data set by name; `options` are those of its loading function."""
    return datasets[name](**options)

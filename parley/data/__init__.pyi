"""Data; `__init__.py` reads this file for where each name comes from."""

from typing import Any

from parley.data.client import ClientData as ClientData
from parley.data.client import DataInfo as DataInfo
from parley.data.dataset import Dataset as Dataset
from parley.data.federation import Federation as Federation
from parley.data.fetch import cache_dir as cache_dir
from parley.data.label_spread import describe as describe
from parley.data.partition import IID as IID
from parley.data.partition import Dirichlet as Dirichlet
from parley.data.partition import Fixed as Fixed
from parley.data.partition import Natural as Natural
from parley.data.partition import Pachinko as Pachinko
from parley.data.partition import Partition as Partition
from parley.data.partition import Partitioner as Partitioner
from parley.data.partition import QuantitySkew as QuantitySkew
from parley.data.partition import Shards as Shards
from parley.data.partition import SHomogeneity as SHomogeneity
from parley.data.partition import Sorted as Sorted
from parley.data.partition import partitioner as partitioner
from parley.data.partition import partitioners as partitioners
from parley.data.sets.base import Loader as Loader
from parley.data.sets.base import dataset as dataset
from parley.data.sets.base import datasets as datasets
from parley.data.sets.cifar import cifar10 as cifar10
from parley.data.sets.cifar import cifar100 as cifar100
from parley.data.sets.embedded import breast_cancer as breast_cancer
from parley.data.sets.embedded import diabetes as diabetes
from parley.data.sets.embedded import digits as digits
from parley.data.sets.embedded import iris as iris
from parley.data.sets.embedded import wine as wine
from parley.data.sets.emnist import emnist_digits as emnist_digits
from parley.data.sets.emnist import emnist_letters as emnist_letters
from parley.data.sets.hospitals import heart_disease as heart_disease
from parley.data.sets.hospitals import tcga_brca as tcga_brca
from parley.data.sets.leaf import femnist as femnist
from parley.data.sets.mnist import fashion_mnist as fashion_mnist
from parley.data.sets.mnist import mnist as mnist
from parley.data.sets.mnist import mnist_writers as mnist_writers
from parley.data.sets.multinli import multinli as multinli
from parley.data.sets.shakespeare import shakespeare as shakespeare
from parley.data.sets.svhn import svhn as svhn
from parley.data.sources import InMemory as InMemory
from parley.data.sources import Pooled as Pooled

def load(name: str, **options: Any) -> Dataset: ...

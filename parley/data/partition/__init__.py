"""Partitioners: who gets which samples. Each is a frozen dataclass, exact, and a function of its key."""

from parley.data.partition.base import Partition, Partitioner, partitioner, partitioners
from parley.data.partition.dirichlet import Dirichlet
from parley.data.partition.fixed import Fixed
from parley.data.partition.natural import Natural
from parley.data.partition.pachinko import Pachinko
from parley.data.partition.quantity import QuantitySkew
from parley.data.partition.simple import IID, Shards, SHomogeneity, Sorted

__all__ = [
    "IID",
    "Dirichlet",
    "Fixed",
    "Natural",
    "Pachinko",
    "Partition",
    "Partitioner",
    "QuantitySkew",
    "SHomogeneity",
    "Shards",
    "Sorted",
    "partitioner",
    "partitioners",
]

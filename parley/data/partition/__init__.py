"""Partitioners: who gets which samples. Each is a frozen dataclass, exact, and a function of its key."""

from parley.data.partition.base import Partition, Partitioner, partitioner, partitioners
from parley.data.partition.dirichlet import Dirichlet
from parley.data.partition.simple import IID

__all__ = ["IID", "Dirichlet", "Partition", "Partitioner", "partitioner", "partitioners"]

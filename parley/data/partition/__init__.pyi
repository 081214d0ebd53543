"""Partitioners; `__init__.py` reads this file for where each name comes from."""

from parley.data.partition.base import Partition as Partition
from parley.data.partition.base import Partitioner as Partitioner
from parley.data.partition.base import partitioner as partitioner
from parley.data.partition.base import partitioners as partitioners
from parley.data.partition.dirichlet import Dirichlet as Dirichlet
from parley.data.partition.fixed import Fixed as Fixed
from parley.data.partition.natural import Natural as Natural
from parley.data.partition.pachinko import Pachinko as Pachinko
from parley.data.partition.quantity import QuantitySkew as QuantitySkew
from parley.data.partition.simple import IID as IID
from parley.data.partition.simple import Shards as Shards
from parley.data.partition.simple import SHomogeneity as SHomogeneity
from parley.data.partition.simple import Sorted as Sorted

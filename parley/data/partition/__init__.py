"""Partitioners: who gets which samples. Each is a frozen dataclass, exact, and a function of its key."""

from parley.core.lazy import lazy
from parley.data.partition.base import partitioners

_HOME, __getattr__, __dir__ = lazy(__name__)

__all__ = sorted(_HOME)

_PARTITIONERS = {
    "parley.data.partition.dirichlet": "dirichlet",
    "parley.data.partition.fixed": "fixed",
    "parley.data.partition.natural": "natural",
    "parley.data.partition.pachinko": "pachinko",
    "parley.data.partition.quantity": "quantity",
    "parley.data.partition.simple": "iid s-homogeneity shards sorted",
}
partitioners.homes |= {name: module for module, names in _PARTITIONERS.items() for name in names.split()}

"""Federated methods, one file per method or family. Importing this package registers all of them."""

from parley.algorithms import (
    baselines,
    datashare,
    ditto,
    ema,
    fedals,
    fedbabu,
    feddyn,
    fednova,
    fedrep,
    kernel,
    kernel_features,
    local_update,
    moon,
    ntk_fl,
    ridge,
    scaffold,
    tct,
)
from parley.algorithms.base.protocol import Algorithm, Cohort, OneExchange, Replies, Reply, algorithm, algorithms

__all__ = [
    "Algorithm", "Cohort", "OneExchange", "Replies", "Reply", "algorithm", "algorithms", "baselines", "datashare",
    "ditto", "ema", "fedals", "fedbabu", "feddyn", "fednova", "fedrep", "kernel", "kernel_features", "local_update",
    "moon", "ntk_fl", "ridge", "scaffold", "tct",
]  # fmt: skip

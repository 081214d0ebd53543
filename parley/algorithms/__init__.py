"""Federated methods, one file per method or family. Importing this package registers all of them."""

from parley.algorithms import (
    baselines,
    cp_ntk_fl,
    datashare,
    ditto,
    ema,
    fedals,
    fedavg_distill,
    fedbabu,
    feddyn,
    fednova,
    fedrep,
    ffgb,
    ffgb_distill,
    histogram_boosting,
    kernel,
    kernel_features,
    local_update,
    moon,
    ntk_fl,
    richardson_romberg,
    ridge,
    scaffold,
    statistics,
    tct,
    tree_baselines,
)
from parley.algorithms.base.exchange import Reply
from parley.algorithms.base.protocol import Algorithm, Cohort, OneExchange, Replies, algorithm, algorithms

__all__ = [
    "Algorithm", "Cohort", "OneExchange", "Replies", "Reply", "algorithm", "algorithms", "baselines", "cp_ntk_fl",
    "datashare", "ditto", "ema", "fedals", "fedavg_distill", "fedbabu", "feddyn", "fednova", "fedrep", "ffgb",
    "ffgb_distill", "histogram_boosting", "kernel", "kernel_features", "local_update", "moon", "ntk_fl",
    "richardson_romberg", "ridge", "scaffold", "statistics", "tct", "tree_baselines",
]  # fmt: skip

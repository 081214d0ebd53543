"""Federated methods: a file per method, a package per family. A method is imported when its name is asked for."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from parley.algorithms.exchange import Reply
from parley.algorithms.protocol import Algorithm, Cohort, OneExchange, Replies, algorithm, algorithms

if TYPE_CHECKING:
    from parley.algorithms import ntk as ntk

__all__ = ["Algorithm", "Cohort", "OneExchange", "Replies", "Reply", "algorithm", "algorithms", "ntk"]

_HOMES = {
    "parley.algorithms.averaging.baselines": "centralised local-only lookahead minibatch-sgd",
    "parley.algorithms.averaging.datashare": "datashare",
    "parley.algorithms.averaging.feddyn": "feddyn",
    "parley.algorithms.averaging.fednova": "fednova",
    "parley.algorithms.averaging.local_update": "fedadagrad fedadam fedavg fedavgm fedprox fedsgd fedyogi fomaml "
    "local-update maml metaminibatchprox reptile",
    "parley.algorithms.averaging.scaffold": "scaffold",
    "parley.algorithms.boosting.fedavg_distill": "fedavg-distill",
    "parley.algorithms.boosting.ffgb": "ffgb",
    "parley.algorithms.boosting.ffgb_distill": "ffgb-distill",
    "parley.algorithms.kernel.exact": "kernel-fedavg kernel-fedprox",
    "parley.algorithms.kernel.features": "feature-fedavg feature-fedprox",
    "parley.algorithms.kernel.ridge": "ridge",
    "parley.algorithms.ntk.cp_ntk_fl": "cp-ntk-fl",
    "parley.algorithms.ntk.ntk_fl": "ntk-fl",
    "parley.algorithms.ntk.tct": "tct",
    "parley.algorithms.parts.fedals": "fedals",
    "parley.algorithms.parts.fedals_scaffold": "fedals-scaffold",
    "parley.algorithms.personal.ditto": "ditto",
    "parley.algorithms.personal.fedbabu": "fedbabu",
    "parley.algorithms.personal.fedrep": "fedrep",
    "parley.algorithms.personal.moon": "moon",
    "parley.algorithms.trees.baselines": "tree-bagging tree-cyclic",
    "parley.algorithms.trees.histogram_boosting": "histogram-boosting",
    "parley.algorithms.wrappers.ema": "ema",
    "parley.algorithms.wrappers.richardson_romberg": "richardson-romberg",
    "parley.analyse.cox": "cox",
    "parley.analyse.glm": "glm",
    "parley.analyse.kaplan_meier": "kaplan-meier",
    "parley.statistics.method": "statistics",
}
algorithms.homes |= {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> ModuleType:
    """A family that is public as a whole loads on first use: `pl.algorithms.ntk`."""
    if name == "ntk":
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")

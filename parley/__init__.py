"""Parley: federated learning among clients that disagree.

    import parley as pl

    federation = pl.data.fashion_mnist().split(pl.Dirichlet(0.1), clients=300, seed=0)
    run = pl.train(pl.FedAvg(lr=0.1, steps=10), federation, model=pl.models.mlp(100), rounds=100, cohort=20)
    run.plot("accuracy")

Public names are exported here, once; they load on first use, so that `from parley.theory import pareto` needs no torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_ROOMS = (
    "advise", "algorithms", "core", "data", "engine", "learn", "models", "report", "runtimes", "store", "studies",
    "study", "theory",
)  # fmt: skip
_NAMES = {
    "parley.advise.gain": ("Gains", "gain"),
    "parley.algorithms.base.protocol": (
        "Algorithm", "Cohort", "OneExchange", "Party", "Replies", "Reply", "algorithm", "ask",
    ),
    "parley.algorithms.local_update": (
        "FOMAML", "MAML", "FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedProx", "FedSGD", "FedYogi", "LocalUpdate",
        "MetaMinibatchProx", "Reptile",
    ),
    "parley.algorithms.baselines": ("Centralised", "LocalOnly", "Lookahead", "MinibatchSGD"),
    "parley.algorithms.datashare": ("DataShare",),
    "parley.algorithms.fedals": ("FedALS", "FedALSScaffold"),
    "parley.algorithms.feddyn": ("FedDyn",),
    "parley.algorithms.fednova": ("FedNova",),
    "parley.algorithms.kernel": ("KernelFedAvg", "KernelFedProx"),
    "parley.algorithms.kernel_features": ("FeatureFedAvg", "FeatureFedProx"),
    "parley.algorithms.scaffold": ("Scaffold",),
    "parley.algorithms.base.server": ("Adagrad", "Adam", "Descent", "HeavyBall", "Nesterov", "Yogi"),
    "parley.core.errors": ("InputError", "ParleyError", "QuorumError", "UnsupportedError", "WireError"),
    "parley.core.key": ("Key",),
    "parley.core.message": ("Memory", "Message", "State"),
    "parley.data": (
        "IID", "ClientData", "Dataset", "Dirichlet", "Federation", "Natural", "Pachinko", "QuantitySkew",
        "SHomogeneity", "Shards", "Sorted",
    ),
    "parley.study.study": ("Study", "load_study"),
    "parley.engine.listeners": ("Listener", "TensorBoard"),
    "parley.engine.observers": ("ConsensusDistance", "Drift", "GradientDissimilarity"),
    "parley.engine.run": ("Run", "plot"),
    "parley.engine.settings": ("Evaluation", "Faults", "Sampling"),
    "parley.store.runs": ("RunStore",),
    "parley.study.train": ("train", "train_study"),
    "parley.learn.task": ("Task",),
}  # fmt: skip
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOME, *_ROOMS, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _ROOMS:
        value = import_module(f"parley.{name}")
    else:
        raise AttributeError(f"module 'parley' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)

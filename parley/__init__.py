"""Parley: federated learning among clients that disagree.

    import parley as pl

    federation = pl.data.fashion_mnist().split(pl.Dirichlet(0.1), clients=300, seed=0)
    run = pl.train(pl.FedAvg(lr=0.1, steps=10), federation, model=pl.models.mlp(100), rounds=100, cohort=20)
    run.plot("accuracy")

Public names are listed in `__init__.pyi`, where editors and type checkers find them; they load on first use, so that
`from parley.theory import pareto` needs no torch.
"""

from parley.core.lazy import lazy

__version__ = "0.1.0"

_HOME, __getattr__, __dir__ = lazy(__name__)

__all__ = sorted([*_HOME, "__version__"])

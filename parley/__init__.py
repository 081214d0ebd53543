"""Parley: federated learning among clients that disagree.

    import parley as pl

    federation = pl.data.fashion_mnist().split(pl.Dirichlet(0.1), clients=300, seed=0)
    run = pl.train(pl.FedAvg(lr=0.1, steps=10), federation, model=pl.models.mlp(100), rounds=100, cohort=20)
    run.plot("accuracy")

Public names are listed in `__init__.pyi`, where editors and type checkers find them; they load on first use, so that
`from parley.theory import pareto` needs no torch.
"""

import ast
from importlib import import_module
from pkgutil import get_data
from typing import Any

__version__ = "0.1.0"


def _listed() -> dict[str, str]:
    """Public name -> the module it comes from; "parley" for the rooms themselves."""
    stub = ast.parse(get_data(__name__, "__init__.pyi") or b"")
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_HOME = _listed()

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'parley' has no attribute '{name}'")
    # A room may be called like a function of its own (`advise`): then it is the room, which calls the function.
    room = home == __name__ or home.startswith(f"{__name__}.{name}.")
    if room:
        value = import_module(f"parley.{name}")
    else:
        module = import_module(home)
        # `tree` and `transforms` are modules themselves, which their package need not have loaded.
        value = getattr(module, name) if hasattr(module, name) else import_module(f"{home}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)

"""Modules of torch that are objects of their own kind travel by name.

Cloudpickle takes `torch.classes` for a part of any code of the user's that mentions torch and something called
`classes`, and such an object cannot be pickled.
"""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType


def modules_by_name() -> None:
    """From now on they are pickled by name."""
    for name in ("torch.classes", "torch.ops"):
        module = sys.modules.get(name)
        if module is not None and type(module) is not ModuleType:
            copyreg.pickle(type(module), _reducer(name))


def _reducer(name: str) -> Callable[[ModuleType], tuple[Callable[[str], ModuleType], tuple[str]]]:
    return lambda module: (import_module, (name,))

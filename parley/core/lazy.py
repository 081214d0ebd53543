"""Packages whose names load on first use: they are listed once, in the `__init__.pyi` beside the `__init__.py`.

Editors and type checkers read that file as it is; here it says from which module each name comes.
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pkgutil import get_data
from typing import Any


def homes(package: str) -> dict[str, str]:
    """Listed name -> the module it comes from, with `:name` where it has another name there."""
    listed: dict[str, str] = {}
    for node in ast.parse(get_data(package, "__init__.pyi") or b"").body:
        if isinstance(node, ast.ImportFrom):
            listed |= {alias.name: str(node.module) for alias in node.names if alias.asname == alias.name}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            module = listed[node.value.id]
            listed |= {ast.unparse(target): f"{module}:{node.value.id}" for target in node.targets}
    return listed


def lazy(package: str) -> tuple[dict[str, str], Callable[[str], Any], Callable[[], list[str]]]:
    """The names of a package with their homes, and its `__getattr__` and `__dir__` (which shows `__all__`).

    A module that is imported becomes an attribute of its package: a name that a module of the package also has must be
    imported by the package itself.
    """
    listed = homes(package)

    def load(name: str) -> Any:
        home = listed.get(name)
        if home is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        # A room may be called like a function of its own (`advise`): then it is the room, which calls the function.
        if home == package or home.startswith(f"{package}.{name}."):
            value = import_module(f"{package}.{name}")
        else:
            home, _, original = home.partition(":")
            module = import_module(home)
            # A name may be a module itself (`tree`), which its package need not have loaded.
            original = original or name
            value = getattr(module, original) if hasattr(module, original) else import_module(f"{home}.{original}")
        setattr(sys.modules[package], name, value)
        return value

    return listed, load, lambda: list(sys.modules[package].__all__)

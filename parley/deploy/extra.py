"""The packages that only deployments need, loaded when they are."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from parley.core.errors import InputError
from parley.core.extras import how_to_install

FLOWER = "1.41.0"
"""The one version of Flower whose programs are known to behave as this room expects."""
_HOW = how_to_install("flower")


def cryptography(module: str) -> Any:
    """A module of the package cryptography."""
    try:
        return import_module(f"cryptography.{module}")
    except ImportError:
        raise InputError(f"certificates and keys need the package cryptography: {_HOW}.") from None


def check_flower() -> None:
    """Refuse to go on without Flower, or with another version: what it runs at a node depends on its inner workings."""
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        raise InputError(f"a deployment needs Flower: {_HOW}.") from None
    if installed != FLOWER:
        raise InputError(f"a deployment needs Flower {FLOWER}, but {installed} is installed: {_HOW}.")


def program(name: str) -> str:
    """The full path of one of Flower's programs, which lie beside the interpreter."""
    check_flower()
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise InputError(f"Flower's program {name} is not at {path}; install it there: {_HOW}.")
    return str(path)

"""Rooms that can be called: `pl.advise(study)` is the room `parley.advise`, and calls the function of that name."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class CallableRoom(ModuleType):
    """A package whose call is that of a function in it, which loads on the first call."""

    _calls: str

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        module, _, function = self._calls.partition(":")
        return getattr(import_module(module), function)(*arguments, **options)


def make_callable(room: str, calls: str) -> None:
    """Let the package `room` be called; `calls`: the function meant, as `module:function`."""
    module: Any = sys.modules[room]
    module.__class__ = CallableRoom
    module._calls = calls

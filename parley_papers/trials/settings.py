"""Settings as plain JSON, for a trial's fingerprint and for readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import parley as pl


def settings(value: Any, *, defaults: bool = True) -> Any:
    """A method, channel, schedule or the like by its name and its fields; functions and classes by where they are.

    Without `defaults`, fields that have their default value are left out: what was trained before a setting was added
    has the same description afterwards.
    """
    inner = partial(settings, defaults=defaults)
    if is_dataclass(value) and not isinstance(value, type):
        given = {field.name: getattr(value, field.name) for field in fields(value)}
        usual = {} if defaults else {field.name: _default(field) for field in fields(value)}
        return {"name": _name(value)} | {
            name: inner(chosen) for name, chosen in given.items() if name not in usual or chosen != usual[name]
        }
    if isinstance(value, Mapping):
        return {str(key): inner(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [inner(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    raise pl.InputError(f"a setting of a trial is a {type(value).__name__}, which cannot be written down.")


def agree(stored: Any, current: Any) -> bool:
    """Whether two full descriptions have the same value wherever both have one, so that no default has changed."""
    if isinstance(stored, Mapping) and isinstance(current, Mapping):
        return all(agree(stored[key], current[key]) for key in stored.keys() & current.keys())
    return bool(stored == current)


def _name(value: Any) -> str:
    kind: Any = type(value)
    for registry in (pl.algorithms.algorithms, pl.channels.channels):
        if registry.knows(kind):
            return registry.name_of(kind)
    return str(kind.__name__)


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default

"""Settings of settings, as scikit-learn spells them: `algorithm__lr`, `algorithm__server__lr`, `model__hidden`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from parley.core.errors import InputError, nearest
from parley.core.registry import Registry


def made(registry: Registry[Any], value: Any) -> Any:
    """What a name stands for, with its defaults; anything else is what it is."""
    return registry[value]() if isinstance(value, str) else value


def nested(value: Any, prefix: str) -> dict[str, Any]:
    """All settings within a dataclass by their paths."""
    if not is_dataclass(value) or isinstance(value, type):
        return {}
    settings: dict[str, Any] = {}
    for field in fields(value):
        path, inner = f"{prefix}__{field.name}", getattr(value, field.name)
        settings |= {path: inner} | nested(inner, path)
    return settings


def changed(registry: Registry[Any], value: Any, settings: Mapping[str, Any], what: str) -> Any:
    """The value with settings changed, by their paths in it. A name begins from nothing but what is said here."""
    if isinstance(value, str) and all("__" not in path for path in settings):
        _check(registry[value](), settings, what)
        return registry[value](**settings)
    return _replaced(made(registry, value), settings, what)


def _replaced(value: Any, settings: Mapping[str, Any], what: str) -> Any:
    inner: dict[str, dict[str, Any]] = {}
    for path, setting in settings.items():
        name, _, rest = path.partition("__")
        inner.setdefault(name, {})[rest] = setting
    _check(value, inner, what)
    changes = {}
    for name, deeper in inner.items():
        begun = deeper.pop("", getattr(value, name))
        changes[name] = _replaced(begun, deeper, f"{what}__{name}") if deeper else begun
    return replace(value, **changes)


def _check(value: Any, names: Mapping[str, Any], what: str) -> None:
    known = [field.name for field in fields(value)] if is_dataclass(value) else []
    for name in names:
        if name not in known:
            raise InputError(f"{what} has no setting '{name}': {nearest(name, known)}")

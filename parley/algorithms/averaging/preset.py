"""Presets: methods that are another one with other defaults, as rows of a table."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from parley.algorithms.protocol import Algorithm, algorithm

M = TypeVar("M", bound=Algorithm)


class Default(NamedTuple):
    """A setting's default in a preset, and what the setting means there."""

    value: Any
    doc: str


def preset(name: str, title: str, of: type[M], about: str, **defaults: Default) -> type[M]:
    """The method `of` with other defaults: `name` in a study, a class `title` of the calling module in Python."""
    hints = {each.name: each.type for each in fields(of)}  # type: ignore[arg-type]
    body: dict[str, Any] = {
        setting: field(default=default.value, metadata={"doc": default.doc}) for setting, default in defaults.items()
    }
    home = sys._getframe(1).f_globals["__name__"]
    annotations = {setting: hints[setting] for setting in defaults}
    made = type(title, (of,), {**body, "__annotations__": annotations, "__module__": home, "__doc__": about})
    return algorithm(name)(dataclass(frozen=True)(made))

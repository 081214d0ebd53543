"""Presets: methods that are another one with other defaults, as rows of a table."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, get_type_hints

from parley.algorithms.protocol import Algorithm, Needs, algorithm

M = TypeVar("M", bound=Algorithm)


class Default(NamedTuple):
    """A setting's default in a preset, and what the setting means there."""

    value: Any
    doc: str


def preset(name: str, title: str, of: type[M], about: str, needs: Needs | None = None, **defaults: Default) -> type[M]:
    """The method `of` with other defaults: `name` in a study, a class `title` of the calling module in Python."""
    hints = get_type_hints(of, include_extras=True)  # resolved: `of` may stand in another module
    body: dict[str, Any] = {
        setting: field(default=default.value, metadata={"doc": default.doc}) for setting, default in defaults.items()
    }
    if needs is not None:
        body["needs"] = property(lambda self: needs)
    home = sys._getframe(1).f_globals["__name__"]
    annotations = {setting: hints[setting] for setting in defaults}
    made = type(title, (of,), {**body, "__annotations__": annotations, "__module__": home, "__doc__": about})
    return algorithm(name)(dataclass(frozen=True)(made))

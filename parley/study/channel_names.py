"""Channels as a study writes them: `up = ["top-k(0.01)", "clip(1.0)"]`."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from typing import Any

from parley.channels import Chain, Channel, channels
from parley.core.errors import InputError
from parley.core.fields import settings_of
from parley.core.text import shown
from parley.study.opaque import opaque
from parley.study.sections import build, plain

_FORM = re.compile(r"([^()]+)(?:\((.*)\))?", re.DOTALL)
_LONGEST = 1000
"""Characters of a channel with its values."""


def named_channel(text: str) -> Channel:
    """The channel that `name(value, ...)` means; the values are its settings in order."""
    match = _FORM.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None:
        raise InputError(f"channels.up: '{shown(text)}' is not of the form name(value, ...), such as top-k(0.01).")
    name, inside = match[1].strip(), match[2]
    try:
        values = tomllib.loads(f"values = [{inside or ''}]")["values"]
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        raise InputError(f"channels.up: the values of '{shown(text)}' cannot be read.") from None
    kind: Any = channels[name]
    settings = [setting.name for setting in settings_of(kind)]
    if len(values) > len(settings):
        raise InputError(f"channels.up: channel '{name}' has {len(settings)} settings, not {len(values)}.")
    made: Channel = build(kind, dict(zip(settings, values, strict=False)), "channels.up", f"channel '{name}'")
    return made


def stages(given: Channel | Chain | Sequence[Channel]) -> tuple[Channel, ...]:
    """The single channels, in order."""
    if isinstance(given, Chain):
        return given.stages
    return (given,) if isinstance(given, Channel) else tuple(given)


def described(channel: Channel) -> str | dict[str, Any]:
    """The channel as `named_channel` takes it, or a description of one that only Python can make."""
    if not channels.knows(type(channel)):
        return opaque(channel)
    return f"{channels.name_of(type(channel))}({', '.join(json.dumps(value) for value in plain(channel).values())})"

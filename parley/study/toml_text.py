"""A resolved study as the text of a study file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STORED = ("data_fingerprint", "plugin_digests")
"""What a stored run keeps besides its study."""


def to_toml(resolved: Mapping[str, Any]) -> str | None:
    """The study file of a resolved study or a stored run's configuration; None if parts of it only Python can make."""
    from parley.study.opaque import is_opaque  # listing runs must not wait for torch

    if any(is_opaque(value) for value in resolved.values()):
        return None
    kept = {k: v for k, v in resolved.items() if k not in _STORED}
    method = kept.get("algorithm")
    if isinstance(method, Mapping) and method.get("batch", 0) is None:  # left out, it would mean the usual batches
        kept["algorithm"] = {**method, "batch": 0}
    return "\n".join(_table(kept, ())).strip() + "\n"


def without_seed(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The same without a seed of the data that is the study's own, so that another seed deals the data anew."""
    data = resolved.get("data")
    if not isinstance(data, Mapping) or data.get("seed") != resolved.get("seed"):
        return dict(resolved)
    return dict(resolved) | {"data": {key: value for key, value in data.items() if key != "seed"}}


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """Its own settings first, then its tables, each under its heading; TOML has no word for None, so it is left out."""
    known = {key: value for key, value in table.items() if value is not None}
    lines = [f"{_key(key)} = {toml_value(value)}" for key, value in known.items() if not isinstance(value, Mapping)]
    if path and lines:
        lines = [f"[{'.'.join(map(_key, path))}]", *lines]
    below = [_table(value, (*path, key)) for key, value in known.items() if isinstance(value, Mapping)]
    return [line for part in [lines, *below] if part for line in [*part, ""]][:-1]


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def toml_value(value: Any) -> str:
    """A setting as a study file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inside} }}" if inside else "{}"
    return _string(str(value))


def _string(value: str) -> str:
    """JSON's strings are TOML's, but for the one control character that JSON lets through."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

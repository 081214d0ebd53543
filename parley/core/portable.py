"""Descriptions and sentences that go to others, without the paths of this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PATH = re.compile(r"(?<![\w.:/])(?:file://)?~?/(?:[^\s/'\"<>|:;,()]+/)*([^\s/'\"<>|:;,()]+)/?")
_QUOTED = re.compile(r"(['\"])(?:file://)?~?/(?:(?!\1)[^/\n])+(?:/(?:(?!\1)[^/\n])+)*/?\1")


def portable(config: Any) -> Any:
    """A description without paths of this machine: of a folder or file only its name is kept."""
    if isinstance(config, Mapping):
        return {key: portable(value) for key, value in config.items()}
    if isinstance(config, list):
        return [portable(value) for value in config]
    if isinstance(config, str) and Path(config).is_absolute():
        return Path(config).name
    return config


def without_paths(text: str) -> str:
    """A sentence in which absolute paths are names only.

    >>> without_paths("cannot read '/home/ann/my study/a.csv' (/home/ann/b.csv, line 3)")
    "cannot read 'a.csv' (b.csv, line 3)"
    """
    quoted = _QUOTED.sub(lambda match: f"{match[1]}{Path(match[0][1:-1]).name}{match[1]}", text)
    return _PATH.sub(lambda match: match[1], quoted)

"""What lies in a folder of data: all of it is used, or named as left out."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path

from parley.core.errors import InputError, ParleyWarning
from parley.core.text import shown

_NAMED = 4
"""Entries that a warning names."""


def entries(path: Path, content: str) -> list[Path]:
    """Files and folders in a folder, by name, hidden ones left out; `content` is what the folder should have."""
    try:
        return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except (OSError, ValueError):
        raise InputError(f"'{shown(path)}' is not a folder; give the folder that has {content}.") from None


def warn_left_out(path: Path, rest: Sequence[Path], suffixes: Collection[str]) -> None:
    """Name what is not read, in one sentence: a forgotten client is noticed before the results are used."""
    if not rest:
        return
    names = [f"{'the folder ' * entry.is_dir()}'{shown(entry.relative_to(path), 60)}'" for entry in rest[:_NAMED]]
    if len(rest) > _NAMED:
        names.append(f"{len(rest) - _NAMED} others")
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    warnings.warn(
        f"reading '{shown(path)}' leaves out {listed}: only {', '.join(suffixes)} files are read.",
        ParleyWarning,
        stacklevel=2,
    )

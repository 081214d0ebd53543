"""Logs that do not grow for ever: one that has become large is begun anew, and what it was is FILE.1."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from parley.core.text import printable

LARGEST = 10 * 2**20
"""Bytes of a log."""


def note(path: Path, text: str, say: Callable[[str], None]) -> None:
    """A line in a log, which is said too; a disk that is full ends nothing."""
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(' '.join(text.split()))}"
    with suppress(OSError):
        if path.exists() and path.stat().st_size > LARGEST:
            path.replace(path.with_name(f"{path.name}.1"))
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    with suppress(OSError):
        say(line)


def cut(path: Path) -> None:
    """Begin anew a large file to which another process appends."""
    with suppress(OSError):
        if path.stat().st_size > LARGEST:
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            with path.open("r+b") as file:
                file.truncate()

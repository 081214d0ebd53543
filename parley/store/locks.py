"""Who works on a run: a lock on a file in the run's folder, which the operating system drops when its process dies.

POSIX record locks belong to a process and are not inherited by forked workers, so an orphaned worker never holds a
run. They vanish when the process closes *any* descriptor of the file, which is why the locks held here are kept in one
table per process and never opened twice.
"""

import fcntl
import os
import threading
import time
from pathlib import Path

from parley.core.files import file_errors, make_folder, open_regular

_held: dict[Path, int] = {}
_guard = threading.Lock()
_PATIENCE = 0.5  # seconds; long enough for another process's `is_locked` to let go


def acquire(path: Path) -> bool:
    """Take the lock; False if another process, or another owner in this one, has it."""
    path = path.parent.resolve() / path.name
    with _guard:
        if path in _held:
            return False
        with file_errors(f"the run cannot be claimed, because its lock {path} cannot be written"):
            make_folder(path.parent, private=True)
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        deadline = time.monotonic() + _PATIENCE
        while not _try(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                os.close(descriptor)
                return False
            time.sleep(0.02)
        _held[path] = descriptor
        return True


def release(path: Path) -> None:
    """Give the lock back; harmless if it is not held."""
    with _guard:
        descriptor = _held.pop(path.parent.resolve() / path.name, None)
        if descriptor is not None:
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock."""
    path = path.parent.resolve() / path.name
    with _guard:
        if path in _held:
            return True
        try:
            descriptor = open_regular(path)
        except OSError:
            return False
        try:
            return not _try(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.lockf(descriptor, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True

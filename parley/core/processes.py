"""Processes of our own on this machine: where they find modules, and that none outlives the one that started it."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread


def search_path() -> str:
    """Where a process that we start finds the modules that this one has found."""
    return os.pathsep.join(path for path in sys.path if path)


def free_port() -> int:
    """A port of this machine that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_with_parent() -> None:
    """End with the process that started us, even in the middle of a client that never comes to an end."""
    parent = os.getppid()
    Thread(target=_watch, args=(lambda: os.getppid() == parent,), daemon=True).start()


def end_with(pid: int) -> None:
    """End with another process."""
    Thread(target=_watch, args=(lambda: alive(pid),), daemon=True).start()


def alive(pid: int | None) -> bool:
    """Whether there is such a process that has not ended."""
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
    except PermissionError:
        return True


def _watch(there: Callable[[], bool]) -> None:
    while there():
        time.sleep(0.5)
    os._exit(0)

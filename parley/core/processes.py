"""Processes of our own on this machine: where they find modules, what ends them, and that none outlives its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""What service managers, schedulers and closed terminals send."""


class Interrupted(Exception):
    """Ctrl-C, SIGTERM or SIGHUP during long work; its text says how to go on."""


class Interruption:
    """Which signal interrupted this process, if one did."""

    number: int = signal.SIGINT

    @property
    def exit_code(self) -> int:
        return 128 + self.number


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Let SIGTERM and SIGHUP interrupt what runs as Ctrl-C does, so that it is saved; where they are ignored, as by
    nohup, they stay ignored.

    Only the first counts: a closed terminal is often reported twice, and the second must not interrupt the saving.
    """
    interruption = Interruption()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interruption.number = number
        for caught in before:
            signal.signal(caught, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in ENDING}
        before = {number: handler for number, handler in before.items() if handler is signal.SIG_DFL}
        for number in before:
            signal.signal(number, interrupt)
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def _watch(alive: Callable[[], bool]) -> None:
    while alive():
        time.sleep(0.5)
    os._exit(0)


_KEEP = 1 << 30
"""Bytes of freed memory that are not returned at once."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 32 << 20
"""glibc's upper limit for allocations that come from the heap."""


def keep_freed_memory() -> None:
    """Keep freed memory at hand, where the C library is glibc; elsewhere nothing changes.

    Training frees and asks for the same megabytes at every step; returning them to the system each time costs a page
    fault per 4 KB when they come back.
    """
    if sys.platform.startswith("linux"):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _LARGEST)
            mallopt(_M_TRIM_THRESHOLD, _KEEP)

"""Processes of our own on this machine: started with one thread, ending with the process that started them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from threading import Thread


def search_path() -> str:
    """Where a process that we start finds the modules that this one has found."""
    return os.pathsep.join(path for path in sys.path if path)


def spawn(main: str, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """A Python process that runs `main` with the numbers of the open files it inherits as its arguments."""
    return subprocess.Popen(
        [sys.executable, "-c", main, *map(str, descriptors)],
        pass_fds=descriptors,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": search_path()},
        stdin=subprocess.DEVNULL,
    )


def end_with_parent() -> None:
    """End with the process that started us, even in the middle of a client that never comes to an end."""
    Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)

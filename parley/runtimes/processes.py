"""Worker processes on this machine: started with one thread, ending with the process that started them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from parley.core.processes import end_with_parent, search_path

__all__ = ["end_with_parent", "search_path", "spawn"]


def spawn(main: str, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """A Python process that runs `main` with the numbers of the open files it inherits as its arguments."""
    return subprocess.Popen(
        [sys.executable, "-c", main, *map(str, descriptors)],
        pass_fds=descriptors,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": search_path()},
        stdin=subprocess.DEVNULL,
    )

"""Keep freed memory at hand. Training frees and asks for the same megabytes at every step; returning them to the system
each time costs a page fault per 4 KB when they come back."""

import ctypes
import sys

_KEEP = 1 << 30
"""Bytes of freed memory that are not returned at once."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 32 << 20
"""glibc's upper limit for allocations that come from the heap."""


def keep_freed_memory() -> None:
    """For this process, where the C library is glibc; elsewhere nothing changes."""
    if sys.platform.startswith("linux"):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _LARGEST)
            mallopt(_M_TRIM_THRESHOLD, _KEEP)

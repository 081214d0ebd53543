"""NumPy's and SciPy's linear algebra on one thread: how many threads share a sum changes how it is rounded.

torch has its own setting, which the runtimes see to.
"""

from contextlib import AbstractContextManager
from functools import cache

import scipy.linalg  # noqa: F401 (its library must be loaded to be found)
from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[object]:
    """`with one_thread():` the same numbers give the same bits, whichever process computes with them."""
    limit: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return limit


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()

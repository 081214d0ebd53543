"""NumPy's and SciPy's linear algebra on one thread: how many threads share a sum changes how it is rounded."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import ParamSpec, TypeVar

import scipy.linalg  # noqa: F401 (its library must be loaded to be found)
from threadpoolctl import threadpool_limits

P = ParamSpec("P")
T = TypeVar("T")


def one_thread() -> AbstractContextManager[object]:
    """`with one_thread():` the same numbers give the same bits, whichever process computes with them."""
    limit: AbstractContextManager[object] = threadpool_limits(limits=1, user_api="blas")
    return limit


def single_threaded(function: Callable[P, T]) -> Callable[P, T]:
    """Run it in `one_thread`: with many small matrices, threads that wait for each other cost more than they bring."""

    @wraps(function)
    def on_one_thread(*args: P.args, **kwargs: P.kwargs) -> T:
        with one_thread():
            return function(*args, **kwargs)

    return on_one_thread

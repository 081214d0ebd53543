"""Linear algebra on one thread."""

from threadpoolctl import threadpool_info

from parley.core.threads import one_thread


def threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_numpy_and_scipy_use_one_thread_while_asked_to():
    before = threads()
    with one_thread():
        assert set(threads()) == {1}
        with one_thread():
            assert set(threads()) == {1}
        assert set(threads()) == {1}
    assert threads() == before

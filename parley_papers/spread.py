"""Independent jobs of a study, spread over the machine's cores, one process each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import TypeVar

from parley_papers.harness import StudyContext

In = TypeVar("In")
Out = TypeVar("Out")


def spread(
    work: Callable[[In], Out],
    jobs: Sequence[In],
    context: StudyContext,
    what: str,
    done: Callable[[In, Out], None] = lambda job, result: None,
) -> list[Out]:
    """`work` of every job, in order; at scale smoke, and for one job or core, in this process.

    `work` is a function of a module and must give the same whichever process it runs in; the runtimes `inline` and
    `stacked` keep to one thread. `done` is called here with each result as it comes.
    """
    workers = 1 if context.scale == "smoke" else min(context.workers or len(os.sched_getaffinity(0)), len(jobs))
    results: dict[int, Out] = {}

    def take(number: int, result: Out) -> None:
        results[number] = result
        done(jobs[number], result)

    if workers <= 1:
        for number in context.track(range(len(jobs)), what):
            take(number, work(jobs[number]))
    else:
        # However this process ends, the others do not go on computing for nobody.
        with ProcessPoolExecutor(workers, get_context("spawn"), _end_with_parent) as pool:
            numbers = {pool.submit(work, job): number for number, job in enumerate(jobs)}
            try:
                for future in context.track(as_completed(numbers), what, len(jobs)):
                    take(numbers[future], future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return [results[number] for number in range(len(jobs))]


def _end_with_parent() -> None:
    def watch() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(0)

    Thread(target=watch, daemon=True).start()

"""Independent jobs of a study, spread over the machine's cores, one process each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from parley.core.processes import end_with
from parley.runtimes.auto import available_cores
from parley.studies.harness import StudyContext

In = TypeVar("In")
Out = TypeVar("Out")


def spread(work: Callable[[In], Out], jobs: Sequence[In], context: StudyContext, what: str) -> list[Out]:
    """`work` of every job, in order; at scale smoke, and for one job or core, in this process.

    `work` is a function of a module and must give the same whichever process it runs in; the runtimes `inline` and
    `stacked` keep to one thread.
    """
    workers = 1 if context.scale == "smoke" else min(context.workers or available_cores(), len(jobs))
    if workers <= 1:
        return [work(job) for job in context.track(jobs, what)]
    # However this process ends, the others do not go on computing for nobody.
    with ProcessPoolExecutor(workers, get_context("spawn"), end_with, (os.getpid(),)) as pool:
        handed = [pool.submit(work, job) for job in jobs]
        try:
            return [future.result() for future in context.track(handed, what)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise

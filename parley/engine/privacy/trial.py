"""Whether a method can be trained privately, found out before training (see `engine.trial`)."""

from __future__ import annotations

from dataclasses import replace

from parley.algorithms.base.protocol import Cohort
from parley.core.errors import InputError, ParleyError, UnsupportedError
from parley.core.message import State
from parley.engine.privacy.plan import PrivacyPlan
from parley.engine.privacy.round import PrivateRound
from parley.engine.trial import try_rounds
from parley.runtimes.protocol import Job


def check_private(job: Job, plan: PrivacyPlan, state: State) -> None:
    """Refuse, with the reason, a method that sends or reads what differential privacy does not cover."""
    algorithm, ids = job.algorithm, job.federation.ids
    where = f"{algorithm.title} cannot be trained with differential privacy"
    if algorithm.pooled:
        raise InputError(f"{where}: it trains on data in one place, where no client's part is protected.")
    if job.task.sent_buffers:
        raise InputError(
            f'{where}: statistics of BatchNorm would travel with the updates; set buffers = "local", or take a model '
            "without them."
        )
    plan = replace(plan, secret=bytes(16))
    cohort = Cohort((ids[0],), (1 / plan.size,), normalise=False, everyone=ids, expected=float(plan.size))
    try:
        try_rounds(job, lambda number: PrivateRound(plan, job, cohort, number), state)
    except (ParleyError, StopIteration) as error:
        raise UnsupportedError(f"{where}: {error}") from None

"""Whether a method needs nothing but sums, found out before training (see `engine.trial`)."""

from __future__ import annotations

from parley.algorithms.base.protocol import Cohort
from parley.algorithms.base.summed import SingleReplyError
from parley.core.errors import InputError, UnsupportedError
from parley.core.message import State
from parley.engine.secure.round import SummedRound
from parley.engine.trial import try_rounds
from parley.runtimes.protocol import Job


def check_summable(job: Job, state: State) -> None:
    """Refuse, with the reason, a method that reads more than sums."""
    algorithm, ids = job.algorithm, job.federation.ids
    where = f"{algorithm.title} cannot be run with secure sums"
    if algorithm.pooled:
        raise InputError(f"{where}: it trains on data in one place.")
    if algorithm.parties:
        raise InputError(f"{where}: it hides whose replies are whose by parties of its own ({algorithm.parties[-1]}).")
    cohort = Cohort((ids[0],), (1.0,), everyone=ids)
    try:
        try_rounds(job, lambda number: SummedRound(job, cohort), state)
    except SingleReplyError as error:
        raise UnsupportedError(f"{where}: {error}") from None
    except Exception:
        return  # with so few samples, or none at the server, it may fail for other reasons; rounds will tell

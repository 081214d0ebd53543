"""What every runtime does for one client: run it, catch what it raises, and look at what it returns."""

from __future__ import annotations

import math

import torch

from parley.algorithms.protocol import Reply
from parley.core.errors import ParleyError
from parley.core.message import Parcel
from parley.core.tree import is_finite
from parley.learn.losses import IGNORE
from parley.runtimes.protocol import Call, Check, Failure, Job, Outcome, Score


def attempt(job: Job, call: Call) -> Outcome:
    """The client's reply, or why there is none. Only bugs of ours and interrupts get past this."""
    try:
        data = job.federation.client(call.client)
        reply = job.algorithm.client(job.task, call.message, call.memory, data, call.key)
    except Exception as error:  # a client may fail in any way; the round goes on without it
        return Failure(call.client, describe(error))
    return examine(call.client, reply)


def examine(client: str, reply: object) -> Outcome:
    """The reply if it is one and all its numbers are finite."""
    if not isinstance(reply, Reply):
        return Failure(client, f"returned {type(reply).__name__} where a Reply was expected.")
    if not finite(reply.message):
        return Failure(client, "sent NaN or infinite numbers in its message.")
    if reply.memory is not None and not finite(reply.memory):
        return Failure(client, "made NaN or infinite numbers in its memory.")
    return reply


def finite(parcel: Parcel) -> bool:
    if parcel.scalars and not all(math.isfinite(v) for v in parcel.scalars.values() if isinstance(v, float)):
        return False
    return not parcel.tensors or is_finite(parcel.tensors)


def describe(error: BaseException) -> str:
    """An exception as the end of a sentence about a client."""
    text = str(error).strip().split("\n")[0]
    return text if isinstance(error, ParleyError) else f"raised {type(error).__name__}: {text}"


@torch.no_grad()
def score(job: Job, check: Check) -> Score:
    """Evaluate the predictor of a state (and a client's memory) on some samples."""
    federation = job.federation
    data = federation.test if check.client is None else federation.client_test(check.client)
    assert data is not None
    stop = len(data) if check.stop is None else check.stop
    x, y = data.x[check.start : stop], data.y[check.start : stop]
    outputs = job.algorithm.predictor(job.task, check.state, check.memory)(x)
    losses = job.task.loss(outputs, y).double().sum()
    if job.task.info.kind == "regression":
        return Score(float(losses), math.nan, len(x), len(x))
    counted = y != IGNORE
    correct = (outputs.argmax(1) == y) & counted
    return Score(float(losses), float(correct.sum()), len(x), int(counted.sum()))

"""What every runtime does for one client: run it, catch what it raises, and look at what it returns."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from parley.algorithms.protocol import Reply
from parley.core.errors import InputError, ParleyError
from parley.core.failure import Failure
from parley.core.message import Memory, Message, Payload
from parley.core.tree import aligned, detach, is_finite
from parley.data import ClientData
from parley.learn.losses import IGNORE
from parley.runtimes.protocol import Call, Check, Job, Outcome, Score


def attempt(job: Job, call: Call) -> Outcome:
    """The client's reply, or why there is none. Only bugs of ours and interrupts get past this."""
    try:
        data = _aligned(job.federation.client(call.client))
        reply = job.algorithm.client(job.task, call.message, call.memory, data, call.key)
    except Exception as error:  # a client may fail in any way; the round goes on without it
        return Failure(call.client, describe(error))
    return examine(call.client, reply)


def _aligned(data: ClientData) -> ClientData:
    """Samples whose memory does not make matrix products round differently."""
    x, y = aligned(data.x), aligned(data.y)
    return data if x is data.x and y is data.y else ClientData(x, y)


def examine(client: str, reply: object) -> Outcome:
    """The reply, without autograd's history, if it is one and all its numbers are finite."""
    try:
        reply = check_reply(reply)
    except InputError as error:
        return Failure(client, str(error))
    if not finite(reply.message):
        return Failure(client, "sent NaN or infinite numbers in its message.")
    if reply.memory is not None and not finite(reply.memory):
        return Failure(client, "made NaN or infinite numbers in its memory.")
    return _without_history(reply)


def check_reply(reply: object) -> Reply:
    """The reply if all its parts are what they should be; an InputError says which is not, as the end of a sentence."""
    if not isinstance(reply, Reply):
        raise InputError(f"returned {type(reply).__name__} where a Reply was expected.")
    for part, kind in ((reply.message, Message), (Memory() if reply.memory is None else reply.memory, Memory)):
        if not isinstance(part, kind):
            raise InputError(f"returned {type(part).__name__} where a {kind.__name__} was expected.")
    for tensors in (reply.message.tensors, reply.memory.tensors if reply.memory is not None else {}, reply.observed):
        for name, value in tensors.items():
            if not isinstance(value, Tensor):
                raise InputError(f"returned '{name}' as {type(value).__name__} where a tensor was expected.")
    return reply


def _without_history(reply: Reply) -> Reply:
    """Tensors that remember how they were computed would keep the computations of all rounds alive."""
    parts = [reply.message.tensors, reply.memory.tensors if reply.memory is not None else {}, reply.observed]
    if not any(value.requires_grad for part in parts for value in part.values()):
        return reply
    message, memory, observed = (detach(part) for part in parts)
    kept = None if reply.memory is None else Memory(memory, reply.memory.scalars)
    return Reply(Message(message, reply.message.scalars), kept, observed)


def finite(payload: Payload) -> bool:
    if payload.scalars and not all(math.isfinite(v) for v in payload.scalars.values() if isinstance(v, float)):
        return False
    return not payload.tensors or is_finite(payload.tensors)


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
    x, y = aligned(data.x[check.start : stop]), data.y[check.start : stop]
    outputs = job.algorithm.predictor(job.task, check.state, check.memory)(x)
    losses = job.task.loss(outputs, y).double().sum()
    if job.task.info.kind == "regression":
        return Score(float(losses), math.nan, len(x), len(x))
    counted = y != IGNORE
    correct = (outputs.argmax(1) == y) & counted
    return Score(float(losses), float(correct.sum()), len(x), int(counted.sum()))

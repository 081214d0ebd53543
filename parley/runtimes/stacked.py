"""Stacked: the clients of a round train together, one batched operation for all of them.

Linear models and MLPs gain most. It takes algorithms that are the shared training core plus elementwise operations, and
models without forward randomness or running statistics; it refuses the rest.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from parley.algorithms.protocol import Method, Reply
from parley.core.errors import UnsupportedError
from parley.core.failure import Failure
from parley.core.message import Memory, Message, Payload
from parley.core.tree import Tree, nbytes, schema
from parley.data import ClientData
from parley.learn.batches import Plan
from parley.learn.dense import DenseGradient
from parley.learn.gradients import StackGradient
from parley.learn.stack import ClientStack, KeyStack, stack_batches
from parley.runtimes.execute import attempt, check_reply, describe
from parley.runtimes.inline import Inline
from parley.runtimes.protocol import Call, Job, Outcome, runtimes

P = TypeVar("P", bound=Payload)

_ROOM = 2**28
"""Bytes that one copy of a stack's parameters may take."""
_MOST = 256
"""Clients in one stack at most."""


def obstacle(job: Job) -> str | None:
    """Why this job cannot be stacked, as the end of a sentence; None if it can."""
    method, traits = job.algorithm, job.task.traits
    if not (isinstance(method, Method) and method.stackable):
        return f"the algorithm {type(method).__name__} works client by client"
    if traits.has_randomness:
        return "the model draws random numbers in training (dropout)"
    if traits.has_batchnorm:
        return "the model has running statistics (BatchNorm)"
    if traits.recurrent:
        return "the model is recurrent"
    client = job.federation.client(job.federation.ids[0])
    return None if DenseGradient.applies(job.task, client) else _trial(job, client)


def _trial(job: Job, client: ClientData) -> str | None:
    """Ask torch.func itself, with a sample for each of two clients."""
    data = ClientData(client.x[:1], client.y[:1])
    initial = job.task.initial()
    batches = stack_batches(ClientStack((data, data)), [Plan(None, (1,))] * 2, next(iter(initial.values())).dtype)
    job.task.module.train()
    try:
        StackGradient(job.task, list(initial), batches)([v.expand(2, *v.shape) for v in initial.values()], 0)
    except (RuntimeError, ValueError, TypeError) as error:
        return f"torch.func cannot stack the model ({str(error).splitlines()[0]})"
    return None


class Stacked(Inline):
    name = "stacked"

    def __init__(self, job: Job, workers: int = 1) -> None:
        reason = obstacle(job)
        if reason is not None:
            raise UnsupportedError(f'the runtime \'stacked\' cannot take this run: {reason}; use "inline" or "pool".')
        super().__init__(job, workers)
        self.most = max(1, min(_MOST, _ROOM // max(nbytes(job.task.initial()), 1)))

    def run(self, calls: Sequence[Call], deadline: float | None = None) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        data: dict[int, ClientData] = {}
        for place, call in enumerate(calls):
            try:
                data[place] = self.job.federation.client(call.client)
            except Exception as error:
                outcomes[place] = Failure(call.client, f"its data could not be read: {error}")
        for places in _alike(calls, data):
            for first in range(0, len(places), self.most):
                chunk = places[first : first + self.most]
                replies = self._stack([calls[p] for p in chunk], [data[p] for p in chunk])
                outcomes.update(zip(chunk, replies, strict=True))
        return [outcomes[place] for place in range(len(calls))]

    def _stack(self, calls: list[Call], data: list[ClientData]) -> list[Outcome]:
        try:
            reply = self.job.algorithm.client(
                self.job.task, _stack_payloads([call.message for call in calls]),
                _stack_payloads([call.memory for call in calls], shared=False), ClientStack(tuple(data)),
                KeyStack(tuple(call.key for call in calls)),
            )  # fmt: skip
            return _split(reply, [call.client for call in calls])
        except Exception as error:
            # One client can spoil a stack; alone, each shows whether it is the one.
            alone = [attempt(self.job, call) for call in calls]
            if any(isinstance(outcome, Failure) for outcome in alone):
                return alone
            raise UnsupportedError(
                f'the runtime \'stacked\' cannot take this run ({describe(error)}); use "inline" or "pool".'
            ) from error


def _alike(calls: Sequence[Call], data: dict[int, ClientData]) -> list[list[int]]:
    """Groups of calls whose messages and memories have the same shapes and scalars, largest clients first.

    The order of names does not count: memories that come from disk have another than those still in RAM.
    """
    known: dict[int, Hashable] = {}  # most calls carry the same message object

    def kind(payload: Payload) -> Hashable:
        if id(payload) not in known:
            known[id(payload)] = (frozenset(schema(payload.tensors)), frozenset(payload.scalars.items()))
        return known[id(payload)]

    groups: dict[Hashable, list[int]] = {}
    for place in sorted(data, key=lambda place: -len(data[place])):
        groups.setdefault((kind(calls[place].message), kind(calls[place].memory)), []).append(place)
    return list(groups.values())


def _stack_payloads(payloads: list[P], shared: bool = True) -> P:
    """One payload with a row per client; if it may be `shared`, one that all have in common stays as it is."""
    first = payloads[0]
    if not first.tensors or (shared and all(payload is first for payload in payloads)):
        return first
    return type(first)({n: _column([p.tensors[n] for p in payloads]) for n in first.tensors}, dict(first.scalars))


def _column(values: list[Tensor]) -> Tensor:
    """One row per client, without a copy where all have the very same tensor."""
    first = values[0]
    if len(values) > 1 and all(value is first for value in values):
        return first.expand(len(values), *first.shape)
    return torch.stack(values)


def _split(reply: Reply, clients: list[str]) -> list[Outcome]:
    """Each client's rows of a stacked reply."""
    check_reply(reply)
    good = _finite_rows([reply.message, *([reply.memory] if reply.memory is not None else [])], len(clients))
    messages = _rows(reply.message.tensors, len(clients))
    memories = _own_rows(reply.memory.tensors, len(clients)) if reply.memory is not None else None
    observed = _rows(reply.observed, len(clients))
    outcomes: list[Outcome] = []
    for row, client in enumerate(clients):
        if not good[row]:
            outcomes.append(Failure(client, "sent NaN or infinite numbers in its message or memory."))
            continue
        memory = None
        if memories is not None and reply.memory is not None:
            memory = Memory(memories[row], reply.memory.scalars)
        outcomes.append(Reply(Message(messages[row], reply.message.scalars), memory, observed[row]))
    return outcomes


def _finite_rows(payloads: list[Payload], count: int) -> list[bool]:
    """Whether all numbers of each client are finite: a sum shows it in one pass, unless it overflows by itself."""
    fine = torch.ones(count, dtype=torch.bool)
    for column in [value for payload in payloads for value in payload.tensors.values() if value.is_floating_point()]:
        value = column[:1] if column.stride(0) == 0 else column  # all rows are the same
        rows = value.flatten(1) if value.ndim > 1 else value.unsqueeze(1)
        sound = torch.isfinite(rows.sum(1))
        fine &= sound if bool(sound.all()) else torch.isfinite(rows).all(1)
    return [bool(value) for value in fine]


def _rows(tensors: Tree, count: int) -> list[Tree]:
    columns = [value.unbind(0) for value in tensors.values()]
    return [dict(zip(tensors, row, strict=True)) for row in zip(*columns, strict=True)] or [{} for _ in range(count)]


def _own_rows(tensors: Tree, count: int) -> list[Tree]:
    """The rows as copies, which do not keep the whole stack alive; one copy for all where all rows are the same."""
    columns = [
        [value[0].clone()] * count if count > 1 and value.stride(0) == 0 else [row.clone() for row in value.unbind(0)]
        for value in tensors.values()
    ]
    return [dict(zip(tensors, row, strict=True)) for row in zip(*columns, strict=True)] or [{} for _ in range(count)]


runtimes("stacked")(Stacked)

"""Stacked: the clients of a round train together, one batched operation for all of them.

Linear models and MLPs gain most. A method's `client` runs once for a whole stack, as `learn.stack` explains, so it
takes every method that is the shared training core plus operations on tensors, and models without forward randomness or
running statistics; it refuses the rest.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import torch
from torch._C._functorch import _add_batch_dim, _remove_batch_dim
from torch._functorch.vmap import vmap_increment_nesting

from parley.algorithms.base.exchange import Reply
from parley.algorithms.base.protocol import Cohort
from parley.core.context import Context, Secrets
from parley.core.errors import UnsupportedError
from parley.core.failure import Failure
from parley.core.key import Key
from parley.core.message import Memory, Message, Payload
from parley.core.tree import Tree, nbytes, schema
from parley.data import ClientData
from parley.learn.batches import Plan
from parley.learn.dense import DenseGradient
from parley.learn.gradients import StackGradient
from parley.learn.stack import ClientStack, ContextStack, Unstackable, stack_batches, stack_tensors
from parley.runtimes.execute import attempt, check_reply, client_data, describe, failed, finish, placed
from parley.runtimes.inline import Inline
from parley.runtimes.protocol import Answer, Call, Job, Stamp, runtimes

P = TypeVar("P", bound=Payload)

_ROOM = 2**28
"""Bytes that one copy of a stack's parameters may take."""
_MOST = 256
"""Clients in one stack at most."""


def obstacle(job: Job) -> str | None:
    """Why this job cannot be stacked, as the end of a sentence; None if it can."""
    if job.task.module is None:
        return "there is no network to train"
    if job.task.device.type == "mps":
        return "the device mps has no float64, in which the steps of a stack are counted"
    traits = job.task.traits
    if traits.has_randomness:
        return "the model draws random numbers in training (dropout)"
    if traits.has_batchnorm:
        return "the model has running statistics (BatchNorm)"
    if traits.recurrent:
        return "the model is recurrent"
    data = client_data(job, job.federation.ids[0])
    few = ClientData(data.x[:1], data.y[:1])
    return (None if DenseGradient.applies(job.task, few) else _model_trial(job, few)) or _method_trial(job, few)


def _model_trial(job: Job, data: ClientData) -> str | None:
    """Ask torch.func itself, with a sample for each of two clients."""
    initial = job.task.initial()
    batches = stack_batches(ClientStack((data, data)), [Plan(None, (1,))] * 2, next(iter(initial.values())))
    job.task.network.train()
    try:
        StackGradient(job.task, list(initial), batches)([v.expand(2, *v.shape) for v in initial.values()], 0)
    except (RuntimeError, ValueError, TypeError) as error:
        return f"torch.func cannot stack the model ({str(error).splitlines()[0]})"
    return None


def _method_trial(job: Job, data: ClientData) -> str | None:
    """Ask the method itself: its first exchange with two clients of one sample each."""
    ids = job.federation.ids
    cohort = Cohort((ids[0],), (1.0,), everyone=(ids[0],))
    try:
        course = job.algorithm.round(job.server, job.algorithm.init(job.server, Key()), cohort, 1, Key())
        question = next(course)
        course.close()
        context = Context(ids[0], 1, question.asked, 0, Key(), Secrets(b""))
        call = Call(ids[0], question.messages[ids[0]], Memory(), context)
        _together(job, [call, call], [data, data])
    except Exception as error:
        reason = str(error) if isinstance(error, Unstackable) else f"cannot take a stack of clients ({describe(error)})"
        return f"the algorithm {job.algorithm.title} {reason}"
    return None


class Stacked(Inline):
    name = "stacked"

    def __init__(self, job: Job, workers: int = 1) -> None:
        reason = obstacle(job)
        if reason is not None:
            raise UnsupportedError(f'the runtime \'stacked\' cannot take this run: {reason}; use "inline" or "pool".')
        super().__init__(job, workers)
        self.most = max(1, min(_MOST, _ROOM // max(nbytes(job.task.initial()), 1)))

    def run(self, calls: Sequence[Call], stamp: Stamp, deadline: float | None = None) -> list[Answer]:
        if any(call.party or self.job.channels.answers(call.context.asked) is not None for call in calls):
            return super().run(calls, stamp, deadline)
        answers: dict[int, Answer] = {}
        data: dict[int, ClientData] = {}
        for place, call in enumerate(calls):
            try:
                data[place] = self._data(call.recipient)
            except Exception as error:
                answers[place] = failed(call.recipient, error)
        for places in _groups(calls, data):
            for first in range(0, len(places), self.most):
                chunk = places[first : first + self.most]
                replies = self._stack([calls[p] for p in chunk], [data[p] for p in chunk])
                answers.update(zip(chunk, replies, strict=True))
        return [answers[place] for place in range(len(calls))]

    def _data(self, client: str) -> ClientData:
        """Samples are gathered into batches, so it does not matter how they lie in memory."""
        return self.job.federation.client(client) if self.job.on_cpu else client_data(self.job, client)

    def _stack(self, calls: list[Call], data: list[ClientData]) -> list[Answer]:
        try:
            return _split(self.job, _together(self.job, calls, data), calls)
        except Exception as error:
            # One client can spoil a stack; alone, each shows whether it is the one.
            with torch.random.fork_rng(devices=[]):
                alone = [attempt(self.job, call) for call in calls]
            if any(isinstance(answer, Failure) for answer in alone):
                return alone
            raise UnsupportedError(
                f'the runtime \'stacked\' cannot take this run ({describe(error)}); use "inline" or "pool".'
            ) from error


def _together(job: Job, calls: Sequence[Call], data: Sequence[ClientData]) -> Reply:
    """One reply whose tensors have a row per client."""
    clients, contexts = ClientStack(tuple(data)), ContextStack(tuple(call.context for call in calls))
    answering = job.exchange(calls[0].context.asked).answer
    message, shared = _rows_of(_all_placed(job, [job.channels.bare(call.message) for call in calls]))
    memory, _ = _rows_of(_all_placed(job, [call.memory for call in calls]))
    # What `torch.func.vmap` does, without its search through nested arguments.
    count = len(calls)
    with vmap_increment_nesting(count, "error") as level:
        received = {n: v if n in shared else _add_batch_dim(v, 0, level) for n, v in message.items()}
        remembered = {n: _add_batch_dim(v, 0, level) for n, v in memory.items()}
        reply = answering(
            job.task, Message(received, calls[0].message.scalars), Memory(remembered, calls[0].memory.scalars),
            clients, contexts,
        )  # fmt: skip
        reply = check_reply(reply)

        def rows(tree: Tree) -> Tree:
            return {name: _remove_batch_dim(value, level, count, 0) for name, value in tree.items()}

        sent, seen = rows(reply.message.tensors), rows(reply.observed)
        kept = None if reply.memory is None else Memory(rows(reply.memory.tensors), reply.memory.scalars)
    return Reply(Message(sent, reply.message.scalars), kept, seen)


def _all_placed(job: Job, payloads: list[P]) -> list[P]:
    """Where clients train, what they share being moved once."""
    if job.on_cpu:
        return payloads
    each = {id(payload): placed(job, payload) for payload in {id(payload): payload for payload in payloads}.values()}
    return [each[id(payload)] for payload in payloads]


def _rows_of(payloads: Sequence[Payload]) -> tuple[Tree, set[str]]:
    """A row per client of every tensor, and the names of those that all have in common, which stay as they are."""
    first, *others = {id(payload): payload for payload in payloads}.values()
    tensors: Tree = {}
    shared: set[str] = set()
    for name, value in first.tensors.items():
        if all(other.tensors[name] is value for other in others):
            shared.add(name)
            tensors[name] = value
        else:
            tensors[name] = stack_tensors([payload.tensors[name] for payload in payloads])
    if payloads and isinstance(first, Memory):  # what a client keeps is its own
        return {n: v.expand(len(payloads), *v.shape) if n in shared else v for n, v in tensors.items()}, set()
    return tensors, shared


def _groups(calls: Sequence[Call], data: Mapping[int, ClientData]) -> list[list[int]]:
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
        samples = data[place]
        same = (samples.x.shape[1:], samples.x.dtype, samples.y.shape[1:], samples.y.dtype)
        groups.setdefault((kind(calls[place].message), kind(calls[place].memory), same), []).append(place)
    return list(groups.values())


def _split(job: Job, reply: Reply, calls: Sequence[Call]) -> list[Answer]:
    """Each client's rows of a stacked reply, through its half of the channels."""
    count = len(calls)
    good = _finite_rows([reply.message, *([reply.memory] if reply.memory is not None else [])], count)
    messages = _rows(reply.message.tensors, count)
    memories = _own_rows(reply.memory.tensors, count) if reply.memory is not None else None
    observed = _rows(reply.observed, count)
    answers: list[Answer] = []
    for row, call in enumerate(calls):
        if not good[row]:
            answers.append(Failure(call.recipient, "sent NaN or infinite numbers in its message or memory."))
            continue
        memory = None
        if memories is not None and reply.memory is not None:
            memory = Memory(memories[row], reply.memory.scalars)
        own = Reply(Message(messages[row], reply.message.scalars), memory, observed[row])
        answers.append(finish(job, call, own) if job.channels.up or not job.on_cpu else own)
    return answers


def _finite_rows(payloads: list[Payload], count: int) -> list[bool]:
    """Whether all numbers of each client are finite."""
    fine = torch.ones(count, dtype=torch.bool)
    for column in [value for payload in payloads for value in payload.tensors.values() if value.is_floating_point()]:
        value = column[:1] if column.stride(0) == 0 else column  # all rows are the same
        # A sum shows it in one pass, unless it overflows by itself.
        if not math.isfinite(value.sum().item()):
            fine &= torch.isfinite(value).flatten(1).all(1).cpu() if value.ndim > 1 else torch.isfinite(value).cpu()
    return fine.tolist()


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

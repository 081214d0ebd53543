"""Stacked: the clients of a round train together, one batched operation for all of them.

Linear models and MLPs gain most. A method's `client` runs once for a whole stack, as `training.stack` explains, so it
takes every method that is the shared training core plus operations on tensors, and models without forward randomness or
running statistics. The rest is refused: a method whose exchanges declare `stack=False` before anything is trained, one
that says nothing with its first stack. There `auto` goes on client by client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import torch

from parley.algorithms.exchange import Party, Reply
from parley.core.errors import UnsupportedError
from parley.core.failure import Failure
from parley.core.key import Key
from parley.core.message import Memory, Message, Payload, Row, RowTree, Stack
from parley.core.tree import Tree, nbytes, schema
from parley.data import ClientData
from parley.runtimes.execute import attempt, check_reply, client_data, describe, failed, finish, placed
from parley.runtimes.inline import Inline
from parley.runtimes.protocol import Answer, Call, Job, Stamp, runtimes
from parley.training.batches import Work
from parley.training.dense import DenseGradient
from parley.training.gradients import StackGradient
from parley.training.stack import ClientStack, ContextStack, Unstackable, mapped, stack_batches, stack_tensors

P = TypeVar("P", bound=Payload)

_ROOM = 2**28
"""Bytes that one copy of a stack's parameters may take."""
_CACHE = 2**23
"""Bytes of parameters with which a stack still works in the cache."""
_FEW, _MOST = 8, 1024
"""Clients in one stack: so many also where they leave the cache, and at most."""
_HELD = 2**30
"""Bytes of samples that may be held beside the federation's own."""
_ONLY_ALONE = (Unstackable, RuntimeError, TypeError, AttributeError, AssertionError)
"""What a function raises on a stack that is written for one client. Anything else is a bug."""


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
    for each in job.exchanges.values():
        if not (each.stack or isinstance(each.asks, Party)):
            return f"the algorithm {job.algorithm.title} asks each client by itself ('{each.name}')"
    data = client_data(job, job.federation.ids[0])
    few = ClientData(data.x[:1], data.y[:1])
    return None if DenseGradient.applies(job.task, few) else _model_trial(job, few)


def _model_trial(job: Job, data: ClientData) -> str | None:
    """Ask torch.func itself, with a sample for each of two clients."""
    initial = job.task.initial()
    batches = stack_batches(
        ClientStack.of([data, data]), Work(steps=1).stacked((1, 1), (Key(), Key())), next(iter(initial.values()))
    )
    job.task.network.train()
    try:
        StackGradient(job.task, list(initial), batches)([v.expand(2, *v.shape) for v in initial.values()], 0)
    except (RuntimeError, ValueError, TypeError) as error:
        return f"torch.func cannot stack the model ({str(error).splitlines()[0]})"
    return None


class Stacked(Inline):
    name = "stacked"
    together = True

    def __init__(self, job: Job, workers: int = 1, fall_back: Callable[[str], None] | None = None) -> None:
        """`fall_back` hears why clients are run one by one, which without it stops the run."""
        if (reason := obstacle(job)) is not None:
            raise _refused(reason)
        super().__init__(job, workers)
        self.fall_back = fall_back
        size = max(nbytes(job.task.initial()), 1)
        self.most = max(1, min(_MOST, max(_FEW, _CACHE // size), _ROOM // size))
        self.samples = Samples(job)

    def run(self, calls: Sequence[Call], stamp: Stamp, deadline: float | None = None) -> list[Answer]:
        if not calls or calls[0].party or self.job.channels.answers(calls[0].context.asked) is not None:
            return super().run(calls, stamp, deadline)
        answers: dict[int, Answer] = {}
        sizes: dict[int, int] = {}
        known = self.samples.rows
        for position, call in enumerate(calls):
            if (at := known.get(call.recipient)) is not None:
                sizes[position] = at[1]
                continue
            try:
                sizes[position] = self.samples.size(call.recipient)
            except Exception as error:
                answers[position] = failed(call.recipient, error)
        for positions in _groups(calls, sizes):
            for first in range(0, len(positions), self.most):
                chunk = positions[first : first + self.most]
                answers.update(zip(chunk, self._stack([calls[p] for p in chunk]), strict=True))
        self.samples.forget()
        return [answers[position] for position in range(len(calls))]

    def _stack(self, calls: list[Call]) -> list[Answer]:
        if not self.together:
            return super().run(calls, Stamp("", 0, 0, 0))
        try:
            data = self.samples.stack([call.recipient for call in calls])
            return _split(self.job, _together(self.job, calls, data), calls)
        except Exception as error:
            # One client can spoil a stack; alone, each shows whether it is the one.
            with torch.random.fork_rng(devices=[]):
                alone = [attempt(self.job, call) for call in calls]
            if any(isinstance(answer, Failure) for answer in alone):
                return alone
            if not isinstance(error, _ONLY_ALONE):
                raise
            known = isinstance(error, Unstackable)
            why = str(error) if known else f"cannot take a stack of clients ({describe(error)})"
            reason = f"the algorithm {self.job.algorithm.title} {why}"
            if self.fall_back is None:
                raise _refused(reason) from error
            self.together = False
            self.fall_back(reason)
            return alone


def _refused(reason: str) -> UnsupportedError:
    return UnsupportedError(f'the runtime \'stacked\' cannot take this run: {reason}; use "inline" or "pool".')


class Samples:
    """The samples of clients, one after the other in one tensor, so that the batches of a stack are gathered at once.

    Where the federation has them so, they stay there. Otherwise clients asked before stay here, unless they are made on
    demand or are too many.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        source = job.federation.source
        self.pool = source.pool if job.on_cpu else None
        self.lasting = job.on_cpu and source.recipe is None and (self.pool is not None or self._room() <= _HELD)
        self.fresh: dict[str, ClientData] = {}
        self.offsets = None if self.pool is None else self.pool.offsets.numpy()
        self.rows: dict[str, tuple[int, int]] = {}
        """Where those of a client begin, and how many they are."""
        self.held = None if self.pool is None else ClientData(self.pool.x, self.pool.y)
        self.end = 0

    def _room(self) -> int:
        """Bytes of all clients' samples."""
        sample = self.job.federation.form.made_up(1)
        return int(self.job.federation.sizes().sum()) * (sample.x.nbytes + sample.y.nbytes)

    def size(self, client: str) -> int:
        """How many a client has that was not asked before; what is wrong with them is raised here."""
        on_cpu, federation = self.job.on_cpu, self.job.federation
        if self.offsets is not None:
            i = federation.number(client)
            start, end = int(self.offsets[i]), int(self.offsets[i + 1])
            self.rows[client] = start, end - start
            return end - start
        if client not in self.fresh:
            # Batches are copies, so it does not matter how samples lie in memory.
            self.fresh[client] = federation.client(client) if on_cpu else client_data(self.job, client)
        return len(self.fresh[client])

    def stack(self, clients: Sequence[str]) -> ClientStack:
        """Those of clients whose sizes were asked for."""
        if not self.lasting:
            return ClientStack.of([self.fresh[client] for client in clients])
        held = self._keep([client for client in clients if client in self.fresh] if self.fresh else [], clients)
        starts, sizes = zip(*[self.rows[client] for client in clients], strict=True)
        return ClientStack(held, starts, sizes, None if self.pool is None else self.pool.index)

    def _keep(self, fresh: Sequence[str], clients: Sequence[str]) -> ClientData:
        """Move them to the others. Memory that nobody has written to yet is only promised, so there is room for all."""
        if self.held is None:
            room, first = int(self.job.federation.sizes().sum()), self.fresh[clients[0]]
            self.held = ClientData(*(value.new_empty(room, *value.shape[1:]) for value in (first.x, first.y)))
        for client in fresh:
            data = self.fresh.pop(client)
            start, self.end = self.end, self.end + len(data)
            self.held.x[start : self.end], self.held.y[start : self.end] = data.x, data.y
            self.rows[client] = start, len(data)
        return self.held

    def forget(self) -> None:
        """Called when a question has been answered."""
        self.fresh.clear()


def _together(job: Job, calls: Sequence[Call], clients: ClientStack) -> Reply:
    """One reply whose tensors have a row per client."""
    contexts = ContextStack(tuple([call.context for call in calls]))
    answering = job.exchange(calls[0].context.asked).answer
    received = [call.message for call in calls]
    bare = {id(message): job.channels.bare(message) for message in {id(m): m for m in received}.values()}
    message, shared = _rows_of(_all_placed(job, [bare[id(message)] for message in received]))
    memory, _ = _rows_of(_all_placed(job, [call.memory for call in calls]))
    count = len(calls)
    with mapped(count) as level:
        row = {n: v if n in shared else level.client(v) for n, v in message.items()}
        reply = answering(
            job.task,
            Message(row, calls[0].message.scalars),
            Memory(level.each(memory), calls[0].memory.scalars),
            clients,
            contexts,
        )
        reply = check_reply(reply)
        sent, seen = level.rows(reply.message.tensors, count), level.rows(reply.observed, count)
        kept = None if reply.memory is None else Memory(level.rows(reply.memory.tensors, count), reply.memory.scalars)
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


def _groups(calls: Sequence[Call], sizes: Mapping[int, int]) -> list[list[int]]:
    """Groups of calls whose messages and memories have the same shapes and scalars, largest clients first.

    The order of names does not count: memories that come from disk have another than those still in RAM.
    """
    known: dict[int, Hashable] = {}  # most calls carry the same message object

    def kind(payload: Payload) -> Hashable:
        if id(payload) not in known:
            known[id(payload)] = (frozenset(schema(payload.tensors)), frozenset(payload.scalars.items()))
        return known[id(payload)]

    order = sorted(sizes, key=sizes.__getitem__, reverse=True)
    if len({(id(calls[position].message), id(calls[position].memory)) for position in order}) == 1:
        return [order]
    groups: dict[Hashable, list[int]] = {}
    for position in order:
        groups.setdefault((kind(calls[position].message), kind(calls[position].memory)), []).append(position)
    return list(groups.values())


def _split(job: Job, reply: Reply, calls: Sequence[Call]) -> list[Answer]:
    """Each client's rows of a stacked reply, through its half of the channels."""
    count = len(calls)
    good = _finite_rows([reply.message, *([reply.memory] if reply.memory is not None else [])], count)
    stack = Stack(reply.message.tensors, reply.message.scalars)
    memories = _own_rows(reply.memory.tensors, count) if reply.memory is not None else None
    shown, whole = Stack(reply.observed, {}), job.on_cpu and not job.channels.up
    if memories is None and all(good) and whole:
        return [_in_stack(stack, shown, row) for row in range(count)]
    answers: list[Answer] = []
    for row, call in enumerate(calls):
        if not good[row]:
            answers.append(Failure(call.recipient, "sent NaN or infinite numbers in its message or memory."))
            continue
        memory = None
        if memories is not None and reply.memory is not None:
            memory = Memory(memories[row], reply.memory.scalars)
        if whole:
            answers.append(_in_stack(stack, shown, row, memory))
        else:
            cut = Reply(Message(stack.cut(row), stack.scalars), memory, shown.cut(row))
            answers.append(finish(job, call, cut))
    return answers


def _in_stack(stack: Stack, shown: Stack, row: int, memory: Memory | None = None) -> Reply:
    """A client's reply, of which nothing is cut out yet."""
    return Reply(Row(stack, row), memory, RowTree(shown, row))  # type: ignore[arg-type]


def _finite_rows(payloads: list[Payload], count: int) -> list[bool]:
    """Whether all numbers of each client are finite."""
    fine = torch.ones(count, dtype=torch.bool)
    for column in [value for payload in payloads for value in payload.tensors.values() if value.is_floating_point()]:
        value = column[:1] if column.stride(0) == 0 else column  # all rows are the same
        # A sum shows it in one pass, unless it overflows by itself.
        if not math.isfinite(value.sum().item()):
            fine &= torch.isfinite(value).flatten(1).all(1).cpu() if value.ndim > 1 else torch.isfinite(value).cpu()
    return fine.tolist()


def _own_rows(tensors: Tree, count: int) -> list[Tree]:
    """The rows as copies, which do not keep the whole stack alive; one copy for all where all rows are the same."""
    columns = [
        [value[0].clone()] * count if count > 1 and value.stride(0) == 0 else [row.clone() for row in value.unbind(0)]
        for value in tensors.values()
    ]
    return [dict(zip(tensors, row, strict=True)) for row in zip(*columns, strict=True)] or [{} for _ in range(count)]


runtimes("stacked")(Stacked)

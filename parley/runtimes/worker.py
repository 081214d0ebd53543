"""A worker process of the pool: receives calls, sends replies.

It speaks only to the process that started it, over inherited descriptors, and ends when that process ends.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any

import torch

from parley.algorithms.exchange import Reply
from parley.core.message import Message, Payload
from parley.core.processes import end_with_parent, keep_freed_memory
from parley.runtimes.arena import Arena, Ref, Space, loads
from parley.runtimes.execute import attempt, evaluate
from parley.runtimes.protocol import Call, EvaluationCall, Job, Score

Packed = tuple[type[Payload], dict[str, Ref], dict[str, Any]]


def pack(payload: Payload, arena: Space) -> Packed:
    return type(payload), {name: arena.put(value) for name, value in payload.tensors.items()}, payload.scalars


def unpack(packed: Packed, arena: Space, copy: bool) -> Any:
    kind, refs, scalars = packed
    return kind({n: arena.get(ref).clone() if copy else arena.get(ref) for n, ref in refs.items()}, scalars)


def main(files: Sequence[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us decides when to stop
    torch.set_num_threads(1)
    keep_freed_memory()
    end_with_parent()
    line, *descriptors = files
    connection = Connection(line)
    data, down, *up = (Arena(descriptor) for descriptor in descriptors)
    with _ending_with_the_starter():
        packed = connection.recv()
    job, device = loads(data.get(packed).numpy().tobytes(), data)
    job = replace(job, task=job.task.on(device))
    with _ending_with_the_starter():
        connection.send("ready")
        # We are given an item only when the answer to the one before the last has been read, so two arenas take turns.
        for slot in cycle(range(len(up))):
            number, item = connection.recv()
            up[slot].rewind()
            connection.send((number, slot, _answer(job, item, down, up[slot])))


@contextmanager
def _ending_with_the_starter() -> Iterator[None]:
    """A connection that is closed means that nobody waits for an answer any more."""
    try:
        yield
    except (EOFError, OSError):
        os._exit(0)


def _answer(job: Job, item: Any, down: Arena, up: Arena) -> Any:
    """Items come, and replies go, with their payloads packed."""
    if isinstance(item, EvaluationCall):
        model = unpack(item.model, down, copy=False)  # type: ignore[arg-type]
        memory = None if item.memory is None else unpack(item.memory, down, copy=False)  # type: ignore[arg-type]
        before = None if item.before is None else down.get(item.before)  # type: ignore[arg-type]
        score = evaluate(job, replace(item, model=model, memory=memory, before=before))
        if isinstance(score, Score) and score.outputs is not None:
            return replace(score, outputs=up.put(score.outputs))  # type: ignore[arg-type]
        return score
    call: Call = item
    message, memory = unpack(call.message, down, copy=False), unpack(call.memory, down, copy=False)  # type: ignore[arg-type]
    outcome = attempt(job, replace(call, message=message, memory=memory))
    if isinstance(outcome, Reply):
        kept = None if outcome.memory is None else pack(outcome.memory, up)
        return pack(outcome.message, up), kept, pack(Message(outcome.observed), up)
    return outcome

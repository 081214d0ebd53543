"""A worker of the Ray runtime, and how calls and answers travel to it and back: tensors in arrays of bytes."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.exchange import Reply
from parley.core.errors import UnsupportedError
from parley.core.failure import Failure
from parley.core.message import Message, Payload
from parley.core.processes import keep_freed_memory
from parley.runtimes.arena import Ref, dumps, loads, place
from parley.runtimes.execute import attempt, describe, evaluate
from parley.runtimes.protocol import EvaluationCall, Job, Score
from parley.runtimes.worker import Packed, pack, unpack

Bytes = np.ndarray[Any, Any]


class Buffer:
    """Tensors one after the other in one array of bytes, which Ray keeps once per node and maps where it is read."""

    def __init__(self, array: Bytes | None = None) -> None:
        self._array, self._parts, self._used = array, list[tuple[int, Tensor]](), 0

    def put(self, value: Tensor) -> Ref:
        ref, self._used = place(value, self._used)
        self._parts.append((ref.offset, value.detach()))
        return ref

    def get(self, ref: Ref) -> Tensor:
        """A view, which must not be written to."""
        count = int(np.prod(ref.shape))
        if count == 0:
            return torch.empty(ref.shape, dtype=ref.dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            return torch.frombuffer(self._array, dtype=ref.dtype, count=count, offset=ref.offset).view(ref.shape)

    def array(self) -> Bytes:
        """All that was put."""
        whole = torch.empty(self._used, dtype=torch.uint8)
        for offset, value in self._parts:
            plain = value.contiguous().reshape(-1).view(torch.uint8)
            whole[offset : offset + len(plain)] = plain
        return whole.numpy()


@dataclass
class Item:
    """One call, its payloads in buffers: those of several calls stand in the exchange's, the others in its own."""

    call: Any
    payloads: dict[str, tuple[int | None, Packed]]
    """Field -> (number of a shared buffer, or None for its own; where the payload lies in it)."""
    buffer: Bytes
    before: Ref | None = None


class Client:
    """The actor: executes chunks of calls on one thread."""

    def __init__(self, job: Bytes, packed: bytes, device: torch.device) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        made: Job = loads(packed, Buffer(job))
        self.job = replace(made, task=made.task.on(device))

    def node(self) -> str:
        import ray

        return f"{ray.util.get_node_ip_address()}/{ray.get_runtime_context().get_node_id()[:6]}"

    def answer(self, items: list[Item], *shared: Bytes) -> tuple[float, list[Any]]:
        """Seconds of work, and the answers in the order of the items."""
        begin = time.perf_counter()
        received: dict[int, Payload] = {}
        answers = [self._answer(item, shared, received) for item in items]
        return time.perf_counter() - begin, answers

    def _answer(self, item: Item, shared: Sequence[Bytes], received: dict[int, Payload]) -> Any:
        buffer = Buffer(item.buffer)
        payloads = {}
        for name, (number, packed) in item.payloads.items():
            if number is None:
                payloads[name] = unpack(packed, buffer, copy=True)
            else:  # copied once a chunk: what lies in the object store must not be written to
                if number not in received:
                    received[number] = unpack(packed, Buffer(shared[number]), copy=True)
                payloads[name] = received[number]
        if isinstance(item.call, EvaluationCall):
            before = None if item.before is None else buffer.get(item.before).clone()
            score = evaluate(self.job, replace(item.call, before=before, **payloads))
            return score if isinstance(score, Failure) else _packed_score(score)
        outcome = attempt(self.job, replace(item.call, **payloads))
        return outcome if isinstance(outcome, Failure) else _packed_reply(outcome)


def _packed_reply(reply: Reply) -> tuple[str, Bytes, Any]:
    into = Buffer()
    kept = None if reply.memory is None else pack(reply.memory, into)
    parts = pack(reply.message, into), kept, pack(Message(reply.observed), into)
    return "reply", into.array(), parts


def _packed_score(score: Score) -> tuple[str, Bytes, Any]:
    into = Buffer()
    outputs = None if score.outputs is None else into.put(score.outputs)
    return "score", into.array(), (replace(score, outputs=None), outputs)


def unpacked(answer: Any) -> Any:
    if isinstance(answer, Failure):
        return answer
    kind, array, parts = answer
    buffer = Buffer(array)
    if kind == "score":
        score, outputs = parts
        return score if outputs is None else replace(score, outputs=buffer.get(outputs).clone())
    message, memory, observed = parts
    kept = None if memory is None else unpack(memory, buffer, copy=True)
    return Reply(unpack(message, buffer, copy=True), kept, unpack(observed, buffer, copy=True).tensors)


def packed_job(job: Job, ray: Any) -> tuple[Any, bytes]:
    """The job's tensors in the object store, and the rest of it."""
    try:
        into = Buffer()
        packed = dumps(replace(job, task=job.server), into)  # workers move to a device themselves
        return ray.put(into.array()), packed
    except Exception as error:  # whatever the user's own objects raise
        raise UnsupportedError(
            f'the algorithm, model or data cannot be sent to worker processes ({describe(error)}); use "inline".'
        ) from error


def packed_items(calls: list[Any], fields: tuple[str, str], ray: Any) -> tuple[list[Item], list[Any]]:
    """The calls with their payloads in buffers; what several of them share goes into the object store once."""
    uses = Counter(id(payload) for call in calls for name in fields if (payload := getattr(call, name)) is not None)
    shared: list[Any] = []
    known: dict[int, tuple[int | None, Packed]] = {}
    items = []
    for call in calls:
        buffer = Buffer()
        payloads: dict[str, tuple[int | None, Packed]] = {}
        for name in fields:
            payload = getattr(call, name)
            if payload is None:
                continue
            if uses[id(payload)] > 1:
                if id(payload) not in known:
                    into = Buffer()
                    packed = pack(payload, into)
                    known[id(payload)] = len(shared), packed
                    shared.append(ray.put(into.array()))
                payloads[name] = known[id(payload)]
            else:
                payloads[name] = None, pack(payload, buffer)
        before = getattr(call, "before", None)
        ref = None if before is None else buffer.put(before)
        bare = replace(call, **dict.fromkeys(payloads), **({"before": None} if before is not None else {}))
        items.append(Item(bare, payloads, buffer.array(), ref))
    return items, shared

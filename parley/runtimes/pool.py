"""Pool: clients in worker processes, one thread each; data and messages through shared memory.

A worker that dies takes nobody with it: its client is tried once more elsewhere. A client that exceeds its deadline is
given up and its worker replaced.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from parley.algorithms.exchange import Reply
from parley.core.errors import ParleyError, UnsupportedError
from parley.core.failure import Failure
from parley.core.message import Payload
from parley.core.processes import keep_freed_memory
from parley.runtimes.arena import Arena, Ref, dumps
from parley.runtimes.execute import describe
from parley.runtimes.fork_server import Process, start
from parley.runtimes.protocol import Answer, Call, EvaluationCall, Job, Score, Stamp, runtimes
from parley.runtimes.worker import Packed, pack, unpack

_WORKER = "parley.runtimes.worker"
_STARTS = 60.0
"""Seconds a worker may take to come up."""
_FALSE_STARTS = 3
"""Workers in a row that may die before they are up."""


@dataclass
class Worker:
    process: Process
    line: Connection
    up: tuple[Arena, Arena]
    """Where its answers lie, in turns."""
    queue: deque[int] = field(default_factory=deque)
    """Numbers of the items it was given, the first being under way."""
    since: float = 0.0
    """When it began with the first."""
    ready: bool = False

    def end(self, grace: float = 0.0) -> None:
        """Wait so many seconds for a worker that is ending by itself, whose exit code tells why; then kill it."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        self.process.kill()
        self.process.wait()
        self.line.close()
        for arena in self.up:
            arena.close()


class Pool:
    """Worker processes, one thread each; data and messages in shared memory."""

    name = "pool"
    holds_memories = False

    def __init__(self, job: Job, workers: int) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)  # what the server itself computes must not depend on the machine either
        keep_freed_memory()  # the replies of a round take as much as those of the last
        self._data, self._down = Arena(), Arena()
        self._workers: list[Worker] = []
        self._false_starts = 0
        try:
            self._job = _packed_job(job, self._data)
            self._workers.extend(self._start() for _ in range(workers))
        except BaseException:
            self.close()
            raise

    def _start(self) -> Worker:
        ours, theirs = socket.socketpair()
        up = (Arena(), Arena())
        descriptors = (theirs.fileno(), *(arena.descriptor for arena in (self._data, self._down, *up)))
        with theirs:
            process = start(_WORKER, descriptors)
        worker = Worker(process, Connection(ours.detach()), up)
        with suppress(OSError):  # it died; its line reports so when it is waited for
            worker.line.send(self._job)
        return worker

    def run(self, calls: Sequence[Call], stamp: Stamp, deadline: float | None = None) -> list[Answer]:
        packed = _Packer(self._down)
        items = [replace(c, message=packed(c.message), memory=packed(c.memory)) for c in calls]  # type: ignore[arg-type]
        answers = self._map(items, [call.recipient for call in calls], deadline)
        return [answers[number] for number in range(len(calls))]

    def evaluate(self, calls: Sequence[EvaluationCall]) -> list[Score | Failure]:
        packed = _Packer(self._down)
        items = [_packed_call(call, packed, self._down) for call in calls]
        answers = self._map(items, [call.client or "the central test set" for call in calls], None)
        return [answers[number] for number in range(len(calls))]

    def _map(self, items: list[Any], names: list[str], deadline: float | None) -> dict[int, Any]:
        """Answers by number of the item, however many workers come and go meanwhile."""
        answers: dict[int, Any] = {}
        waiting = deque(range(len(items)))
        tried: set[int] = set()
        while len(answers) < len(items):
            for worker in self._workers:
                self._feed(worker, waiting, items)
            busy = [worker for worker in self._workers if worker.queue]
            for line in wait([worker.line for worker in busy], timeout=self._patience(busy, deadline)):
                worker = next(w for w in busy if w.line is line)
                try:
                    self._receive(worker, answers)
                except (EOFError, OSError):
                    number = self._replace(worker, waiting, grace=5.0)
                    if not worker.ready:  # it never began with it
                        waiting.appendleft(number)
                    elif number in tried:
                        status = worker.process.returncode
                        answers[number] = Failure(names[number], f"its worker process died twice (exit code {status}).")
                    else:
                        tried.add(number)
                        waiting.appendleft(number)
            for worker in [w for w in self._workers if _late(w, deadline)]:
                number = self._replace(worker, waiting)
                answers[number] = Failure(names[number], f"gave no answer within {deadline:g} s.")
        return answers

    def _feed(self, worker: Worker, waiting: deque[int], items: list[Any]) -> None:
        """Keep two items at a worker, so that it never waits for us."""
        while waiting and len(worker.queue) < 2:
            number = waiting.popleft()
            if not worker.queue:
                worker.since = time.monotonic()
            worker.queue.append(number)
            try:
                worker.line.send((number, items[number]))
            except OSError:
                return  # it died; its line reports so when it is waited for

    def _receive(self, worker: Worker, answers: dict[int, Any]) -> None:
        got = worker.line.recv()
        worker.since = time.monotonic()
        if got == "ready":
            worker.ready = True
            return
        number, slot, answer = got
        worker.queue.popleft()
        if isinstance(answer, tuple):
            message, memory, observed = answer
            kept = None if memory is None else unpack(memory, worker.up[slot], copy=True)
            seen = unpack(observed, worker.up[slot], copy=True).tensors
            answer = Reply(unpack(message, worker.up[slot], copy=True), kept, seen)
        elif isinstance(answer, Score) and answer.outputs is not None:
            answer = replace(answer, outputs=worker.up[slot].get(answer.outputs).clone())  # type: ignore[arg-type]
        answers[number] = answer

    def _replace(self, worker: Worker, waiting: deque[int], grace: float = 0.0) -> int:
        """End a worker and start another; gives the number of the item it was at, the others wait again."""
        number = worker.queue.popleft()
        waiting.extendleft(reversed(worker.queue))
        worker.end(grace)
        self._false_starts = 0 if worker.ready else self._false_starts + 1
        if self._false_starts > _FALSE_STARTS:
            raise ParleyError(f"worker processes cannot start (exit code {worker.process.returncode}).")
        self._workers[self._workers.index(worker)] = self._start()
        return number

    def _patience(self, busy: list[Worker], deadline: float | None) -> float | None:
        if deadline is None:
            return None
        return max(0.0, min(_limit(worker, deadline) for worker in busy) - time.monotonic())

    def busy(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._data.close()
        self._down.close()
        torch.set_num_threads(self._before)


def _limit(worker: Worker, deadline: float) -> float:
    return worker.since + (deadline if worker.ready else _STARTS)


def _late(worker: Worker, deadline: float | None) -> bool:
    if deadline is None or not worker.queue or time.monotonic() <= _limit(worker, deadline):
        return False
    return not worker.line.poll()  # an answer that waits for us came in time


def _packed_job(job: Job, arena: Arena) -> Ref:
    """The job in the arena, so that workers start side by side however large it is."""
    try:
        # Tensors travel through shared memory, so workers move to a device themselves.
        packed = dumps((replace(job, task=job.server), job.task.device), arena)
        return arena.put(torch.frombuffer(bytearray(packed), dtype=torch.uint8))
    except Exception as error:  # whatever the user's own objects raise
        raise UnsupportedError(
            f'the algorithm, model or data cannot be sent to worker processes ({describe(error)}); use "inline".'
        ) from error


def _packed_call(call: EvaluationCall, packed: _Packer, arena: Arena) -> EvaluationCall:
    parts: dict[str, Any] = {"model": packed(call.model)}
    if call.memory is not None:
        parts["memory"] = packed(call.memory)
    if call.before is not None:
        parts["before"] = arena.put(call.before)
    return replace(call, **parts)


class _Packer:
    """Writes each payload into the arena once, however many recipients share it."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.known: dict[int, Packed] = {}
        arena.rewind()

    def __call__(self, payload: Payload) -> Packed:
        if id(payload) not in self.known:
            self.known[id(payload)] = pack(payload, self.arena)
        return self.known[id(payload)]


runtimes("pool")(Pool)

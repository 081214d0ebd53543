"""A host of nodes: for every message it forks a process, which is the node for as long as it answers.

It has imported what nodes need, but runs nothing of the algorithm's and sees no data, so each of its children is a node
that has just been started. It speaks only to the process that started it, and ends when that process ends.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

import cloudpickle
import torch

from parley.core.errors import ParleyError
from parley.core.failure import Failure
from parley.core.processes import end_with_parent, keep_freed_memory
from parley.runtimes.execute import describe
from parley.runtimes.node import Node, failure, handle
from parley.runtimes.protocol import Job

READY = "ready"


def main(files: Sequence[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us decides when to stop
    torch.set_num_threads(1)
    keep_freed_memory()
    line: Connection = Connection(files[0])
    job: Job | None = None
    while True:
        try:
            item = line.recv()
            if isinstance(item, bytes):  # the job
                job, status = _loaded(item)
                line.send(status)
            else:
                assert job is not None
                line.send(_asked(line, job, *item))
        except (EOFError, OSError):
            os._exit(0)


def _loaded(data: bytes) -> tuple[Job | None, str]:
    try:
        return cloudpickle.loads(data), READY
    except Exception as error:  # whatever the user's own objects raise
        return None, describe(error)


def _asked(line: Connection, job: Job, folder: str, recipient: str, deadline: float | None, data: bytes) -> bytes:
    """The answer of the node in this folder, or why there is none."""
    reading, writing = Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        line.close()
        reading.close()
        _be_node(job, Path(folder), recipient, data, writing)
    writing.close()
    with reading:
        ready = wait([reading, line], deadline)
        if line in ready:  # while we work nothing is sent to us, so whoever started us is gone
            os.kill(child, signal.SIGKILL)
            raise EOFError
        try:
            answer = reading.recv_bytes() if ready else None
        except (EOFError, OSError):
            answer = b""
        if answer:
            _learn(reading)
        else:
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if answer:
        return answer
    late = f"gave no answer within {deadline:g} s." if answer is None else f"its process died (exit code {status})."
    return failure(Failure(recipient, late))


def _learn(reading: Connection) -> None:
    """Import what the node had to import, so that the next one need not."""
    with suppress(EOFError, OSError):
        for name in reading.recv_bytes().decode().split():
            with suppress(Exception, SystemExit):
                import_module(name)


def _be_node(job: Job, folder: Path, recipient: str, data: bytes, line: Connection) -> None:
    """Answer one message and end, whatever happens."""
    status, known = 1, set(sys.modules)
    try:
        end_with_parent()
        try:
            answer = handle(Node.open(folder, job), data)
        except (ParleyError, OSError) as error:
            answer = failure(Failure(recipient, f"cannot work: {describe(error)}"))
        line.send_bytes(answer)
        line.send_bytes(" ".join(name for name in sys.modules if name not in known).encode())
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

"""Wire: the contract of a deployment on one machine.

Every client and every party is a node with a folder of its own (see `node`): its data, its secrets, its memory. Nothing
but encoded bytes reaches it, and it is a new process for every message, so nothing that an algorithm leaves behind
in a process, in the message objects or at the server can help it. What works here works where the nodes are machines.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from parley.core.context import recipient_root
from parley.core.errors import ParleyError, UnsupportedError
from parley.core.failure import Failure
from parley.data import Federation
from parley.data.sources import InMemory
from parley.runtimes.execute import describe
from parley.runtimes.fork_server import Process, start
from parley.runtimes.host import READY
from parley.runtimes.node import create
from parley.runtimes.pickling import modules_by_name
from parley.runtimes.protocol import Job, runtimes
from parley.runtimes.remote import Named, Remote


@dataclass
class Host:
    """A process that forks nodes; see `host`."""

    process: Process
    line: Connection
    ready: bool = False
    at: int | None = None
    """The number of the item it was given."""

    @classmethod
    def start(cls) -> Host:
        ours, theirs = socket.socketpair()
        with theirs:
            process = start("parley.runtimes.host", (theirs.fileno(),))
        return cls(process, Connection(ours.detach()))

    def end(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.wait()


class Wire(Remote):
    """Nodes with own disks, that see encoded bytes only and are started anew for every message."""

    name = "wire"

    def __init__(self, job: Job, workers: int) -> None:
        super().__init__(job)
        if not hasattr(os, "fork"):
            raise UnsupportedError('the runtime "wire" needs a system that can fork processes; use "pool".')
        self._temporary: Path | None = None
        self._hosts: list[Host] = []
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)  # what the server itself computes must not depend on the machine either
        try:
            self._packed = _packed(job)
            self._hosts.extend(self._host() for _ in range(workers))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Nodes of a stored run keep their folders; the others' go."""
        while self._hosts:
            self._hosts.pop().end()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        torch.set_num_threads(self._before)

    def node_folder(self, recipient: str, party: bool = False) -> Path:
        """The node's own folder, made when it is first asked."""
        parent = self.folder
        if parent is None:
            self._temporary = self._temporary or Path(tempfile.mkdtemp(prefix="parley-nodes-"))
            parent = self._temporary
        folder = parent / blake2b(recipient.encode(), digest_size=16).hexdigest()
        if not folder.exists() or not (folder / "node.json").exists():
            federation = self.job.federation
            data = () if party else (federation.client(recipient), federation.client_test(recipient))
            create(folder, recipient, recipient_root(self.job.secrets, recipient), *data)
        return folder

    def ask(
        self, named: Sequence[Named], frame: Callable[[int], bytes], deadline: float | None
    ) -> list[bytes | Failure]:
        answers: dict[int, bytes | Failure] = {}
        waiting = deque(range(len(named)))
        while len(answers) < len(named):
            for host in self._hosts:
                if waiting and host.ready and host.at is None:
                    host.at = waiting.popleft()
                    name, party = named[host.at]
                    with suppress(OSError):  # if it died, its line says so below
                        host.line.send((str(self.node_folder(name, party)), name, deadline, frame(host.at)))
            for line in wait([host.line for host in self._hosts if host.at is not None or not host.ready]):
                host = next(host for host in self._hosts if host.line is line)
                try:
                    got = host.line.recv()
                except (EOFError, OSError):
                    got = self._replaced(host, named)
                if not host.ready:
                    _check_ready(got)
                    host.ready = True
                elif host.at is not None:
                    answers[host.at], host.at = got, None
        return [answers[number] for number in range(len(named))]

    def _host(self) -> Host:
        """A host that has been given the job; it says so when it is ready."""
        host = Host.start()
        with suppress(OSError):
            host.line.send(self._packed)
        return host

    def _replaced(self, host: Host, named: Sequence[Named]) -> Failure:
        """A host that died, in front of another one; its node's failure."""
        host.end()
        if not host.ready or host.at is None:
            raise ParleyError(f"the host process of the nodes cannot start (exit code {host.process.returncode}).")
        self._hosts[self._hosts.index(host)] = self._host()
        return Failure(named[host.at][0], f"the host process of its node died (exit code {host.process.returncode}).")


def _packed(job: Job) -> bytes:
    """What all nodes may know: the method and the task, no data and no secrets."""
    nobody = Federation(job.task.info, ("nobody",), InMemory(()))
    try:
        modules_by_name()
        return bytes(cloudpickle.dumps(replace(job, federation=nobody, secrets=b"")))
    except Exception as error:  # whatever the user's own objects raise
        raise UnsupportedError(
            f'the algorithm or the model cannot be sent to nodes ({describe(error)}); use "inline".'
        ) from error


def _check_ready(answer: Any) -> None:
    if answer != READY:
        raise UnsupportedError(f'the algorithm or the model cannot be sent to nodes ({answer}); use "inline".')


runtimes("wire")(Wire)

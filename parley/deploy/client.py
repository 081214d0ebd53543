"""The client of a deployment: Flower at a data owner's machine, started again when it dies. It only calls out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from parley.core.errors import InputError
from parley.core.processes import free_port
from parley.deploy import certificates, health, keys, logs
from parley.deploy.clientapp import FOLDER, SOCKET, write_programs
from parley.deploy.flower import end, started, surroundings
from parley.deploy.guard import guarded
from parley.deploy.host import MAIN as HOST
from parley.deploy.node_folder import NodeFolder
from parley.store.locks import acquire, release

POLL = 0.3
"""Seconds between two looks of Flower's at a node for a program to start."""
_STEADY = 60.0
"""Seconds after which a start counts as a good one."""
_LONGEST = 10.0
"""Seconds between two starts; after a crash the server knows the node as connected for a minute and sends it away."""


@dataclass
class Client:
    folder: NodeFolder
    say: Callable[[str], None] = print
    _process: subprocess.Popen[bytes] | None = None
    _host: subprocess.Popen[bytes] | None = None
    _ended: Event = field(default_factory=Event)

    def run(self) -> None:
        """Answer until interrupted or told to end (SIGTERM)."""
        self._check()
        lock = self.folder.path / "node.lock"
        if not acquire(lock):
            raise InputError(f"a client runs with the node {self.folder.path} already.")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._end_on_signal)
        failures, beside = 0, ExitStack()
        try:
            write_programs(self.folder.path / "programs")
            beside.enter_context(health.served(self.folder.settings.health, self._health))
            while not self._ended.is_set():
                begun = time.monotonic()
                self._start()
                assert self._process is not None
                while not self._ended.is_set() and (code := self._process.poll()) is None:
                    logs.cut(self._output)
                    time.sleep(0.2)
                if self._ended.is_set():
                    break
                failures = 0 if time.monotonic() - begun > _STEADY else failures + 1
                pause = min(_LONGEST, 2.0**failures)
                why = self._last_words() if code else "the server does not know its key: is it registered, or revoked?"
                self.note(f"Flower ended with {code} ({why}); it is started again in {pause:g} s.")
                self._ended.wait(pause)
        finally:
            beside.close()
            self._end()
            self.note("the client has ended.")
            release(lock)

    def _end_on_signal(self, *_: object) -> None:
        self._ended.set()

    def _health(self) -> dict[str, Any]:
        works = {
            name: process is not None and process.poll() is None
            for name, process in (("flower", self._process), ("answering", self._host))
        }
        log = self.folder.path / "audit.jsonl"
        return health.facts_of(self.folder.path, **works, log=not log.exists() or os.access(log, os.W_OK))

    def note(self, text: str) -> None:
        logs.note(self.folder.path / "client.log", text, self.say)

    @property
    def _ca(self) -> Path:
        return self.folder.path / (self.folder.settings.ca or "ca.crt")

    def _check(self) -> None:
        settings = self.folder.settings
        if settings.server is None:
            raise InputError("the node does not know its server: set server in node.toml, or give --server HOST:PORT.")
        if settings.ca is None:
            raise InputError("the node does not know the authority's certificate: give --ca ca.crt.")
        certificate = certificates.read_certificate(self._ca)
        if certificates.days_left(certificate) < 0:
            raise InputError(f"the certificate {self._ca} has expired; ask for a new ca.crt.")
        keys.private_key(self.folder.path / settings.key)

    def _start(self) -> None:
        settings, home = self.folder.settings, self.folder.path / "flower"
        home.mkdir(parents=True, exist_ok=True)
        programs = self.folder.path / "programs"
        environment = surroundings(home, programs, poll=POLL) | {FOLDER: str(self.folder.path)}
        if self._host is None or self._host.poll() is not None:
            host = (sys.executable, "-c", HOST, programs / SOCKET)
            self._host = started(host, environment, self._output, home)
        words = {
            "--superlink": settings.server,
            "--root-certificates": self._ca,
            "--auth-supernode-private-key": self.folder.path / settings.key,
            "--port": free_port(),
        }
        self._process = started(guarded("flower-supernode", words), environment, self._output, home)
        self.note(f"node {settings.name} connects to {settings.server} (process {self._process.pid}).")

    @property
    def _output(self) -> Path:
        return self.folder.path / "supernode.log"

    def _last_words(self) -> str:
        """What Flower said last, as one line."""
        lines = self._output.read_text(encoding="utf-8", errors="replace")[-4000:].splitlines()
        errors = [line for line in lines if "ERROR" in line or "rror" in line or "code:" in line]
        return " ".join((errors or lines or ["nothing was said"])[-1].split())[-300:]

    def _end(self) -> None:
        for process in (self._process, self._host):
            end(process)

"""The server of a deployment: Flower on this machine alone, the front before it, and whatever dies started again."""

from __future__ import annotations

import asyncio
import signal
import ssl
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from parley.core.errors import InputError, ParleyError
from parley.core.processes import alive, free_port
from parley.deploy import certificates, health, keys, logs
from parley.deploy.flower import Control, end, started, surroundings
from parley.deploy.front import Front
from parley.deploy.guard import guarded
from parley.deploy.server_folder import ServerFolder
from parley.deploy.stub import FOLDER, write_app
from parley.deploy.submissions import FAILED, QUEUED, STARTING, STOPPED, Submission, Submissions
from parley.store.locks import acquire, release

_STARTING = 120.0
"""Seconds within which a run that Flower was told to start must have begun."""
_LOOK = 1.0
"""Seconds between two looks at nodes, runs and certificates."""


@dataclass
class Supervisor:
    folder: ServerFolder
    say: Callable[[str], None] = print
    """Told what goes into the log, too."""
    _process: subprocess.Popen[bytes] | None = None
    _admitted: frozenset[str] = frozenset()
    _registered: tuple[Any, ...] = ()
    _starts: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Serve until interrupted or told to end (SIGTERM)."""
        wrong = certificates.problem(self.folder.path, certificates.SERVER)
        if wrong is not None:
            raise InputError(wrong)
        lock = self.folder.path / "server.lock"
        if not acquire(lock):
            raise InputError(f"a server runs in {self.folder.path} already.")
        try:
            with health.served(self.folder.settings.health, self._health):
                asyncio.run(self._serve())
        except KeyboardInterrupt:
            pass
        finally:
            self._end_flower()
            self.note("the server has ended.")
            release(lock)

    def note(self, text: str) -> None:
        logs.note(self.folder.log, text, self.say)

    def _health(self) -> dict[str, Any]:
        flower = self._process is not None and self._process.poll() is None
        certificate = certificates.problem(self.folder.path, certificates.SERVER) is None
        return health.facts_of(self.folder.path, flower=flower, certificate=certificate)

    # --- processes ---

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        self.submissions = Submissions(self.folder)
        self.control = Control(self.folder.path / "flower", free_port(), self.folder.path / "ca.crt")
        self.control.prepare()
        self.app = write_app(self.folder.path / "flower" / "app")
        self._start_flower()
        settings, tls = self.folder.settings, self._tls()
        upstream = ssl.create_default_context(cafile=self.folder.path / "ca.crt")
        front = Front(self.control.port, upstream, lambda key: key in self._admitted, self.note)
        self._admit()
        try:
            server = await front.serve(settings.bind, settings.port, tls)
        except OSError as error:
            raise InputError(f"the port {settings.port} of {settings.bind} cannot be used: {error.strerror}.") from None
        self.note(f"nodes are served at port {settings.port}; {len(self._admitted)} are registered.")
        try:
            await self._watch(ended, tls)
        finally:
            server.close()

    async def _watch(self, ended: asyncio.Event, tls: ssl.SSLContext) -> None:
        stamp, news = self._stamp(), None
        while not ended.is_set():
            self._admit()
            logs.cut(self.control.home / "superlink.log")
            if self._process is None or self._process.poll() is not None:
                self.note(f"Flower ended with {None if self._process is None else self._process.returncode}.")
                self._end_flower()
                await asyncio.sleep(min(30.0, 0.5 * 2 ** self._recent()))
                self._start_flower()
            if await self._ready():
                for step in (self._register, self._runs):
                    try:
                        await asyncio.to_thread(step)
                    except (ParleyError, OSError) as error:  # a full disk, for one: it is tried again
                        self.note(str(error))
            if self._stamp() != stamp:
                stamp = self._stamp()
                tls.load_cert_chain(*self.folder.certificate())
                self.note("the renewed certificate is in use.")
            before, news = news, self._news()
            if news is not None and news != before:
                self.note(news)
            try:
                await asyncio.wait_for(ended.wait(), _LOOK)
            except TimeoutError:
                continue

    def _start_flower(self) -> None:
        crt, key = self.folder.certificate(certificates.LOOPBACK)
        home = self.control.home
        environment = surroundings(home) | {FOLDER: str(self.folder.path)}
        words = {
            "--ssl-ca-certfile": self.control.ca,
            "--ssl-certfile": crt,
            "--ssl-keyfile": key,
            "--host": "127.0.0.1",
            "--port": self.control.port,
            "--database": home / "state.db",
        }
        flags = ("--enable-supernode-auth", "--disable-runtime-dependency-installation")
        command = guarded("flower-superlink", words, *flags)
        self._process = started(command, environment, home / "superlink.log", home)
        self._starts.append(time.monotonic())
        self.note(f"Flower was started (process {self._process.pid}).")

    def _recent(self) -> int:
        """Starts within the last minutes, by which to slow down."""
        return min(6, sum(1 for start in self._starts if time.monotonic() - start < 300))

    def _end_flower(self) -> None:
        end(self._process)
        self._process = None

    async def _ready(self) -> bool:
        """Whether Flower listens."""
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", self.control.port), 2)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    def _tls(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self.folder.certificate())
        return context

    def _stamp(self) -> int:
        try:
            return self.folder.certificate()[0].stat().st_mtime_ns
        except OSError:  # it is being replaced
            return 0

    def _news(self) -> str | None:
        try:
            return certificates.news(self.folder.path, certificates.SERVER)
        except InputError as error:  # it is being replaced, or gone
            return str(error)

    # --- nodes ---

    def _admit(self) -> None:
        """Let in the keys that are registered now."""
        try:
            admitted = frozenset(keys.header_value(key) for key in self.folder.nodes().values())
        except InputError as error:
            self.note(f"nodes: {error}")
            return
        if admitted != self._admitted:
            self._admitted = admitted

    def _register(self) -> None:
        """Tell Flower of keys that are new, and of those that were revoked."""
        nodes, numbers = self.folder.nodes(), self.folder.numbers()
        state = (tuple(nodes.items()), tuple(numbers.items()))
        if state == self._registered:
            return
        fresh = {name: key for name, key in nodes.items() if key not in numbers}
        with ThreadPoolExecutor(4) as several:
            paths = [self.folder.path / "nodes" / f"{name}.pub" for name in fresh]
            registered = list(several.map(self.control.register, paths, fresh))
        for (name, key), number in zip(fresh.items(), registered, strict=True):
            if number is None:
                self.note(f"node {name} cannot be registered: Flower had its key before and gave it up.")
                continue
            numbers[key] = number
            self.folder.keep_numbers(numbers)
            self.note(f"node {name} is registered ({keys.fingerprint(key)}).")
        for key in [key for key in numbers if key not in nodes.values()]:
            self.control.unregister(numbers.pop(key))
            self.folder.keep_numbers(numbers)
            self.note(f"a node was revoked ({keys.fingerprint(key)}).")
        self._registered = (tuple(nodes.items()), tuple(numbers.items()))

    # --- runs ---

    def _runs(self) -> None:
        """Start what waits, and what died again."""
        for submission in self.submissions.all():
            if submission.active and submission.status != QUEUED:
                self._look_after(submission)
        active = [submission for submission in self.submissions.all() if submission.active]
        queued = [submission for submission in active if submission.status == QUEUED]
        if queued and len(active) - len(queued) < self.folder.settings.studies:
            self._start(queued[0])

    def _start(self, submission: Submission) -> None:
        if self.submissions.asked_to_stop(submission.id):
            self.submissions.forget_stop(submission.id)
            self.submissions.update(submission.id, status=STOPPED, reason="stopped before it began.")
            return
        if submission.attempts > self.folder.settings.restarts:
            reason = f"it died {submission.attempts} times; {submission.reason}"
            self.submissions.update(submission.id, status=FAILED, reason=reason)
            self.note(f"run {submission.id} failed: {reason}")
            return
        self.submissions.update(submission.id, status=STARTING, attempts=submission.attempts + 1, pid=None)
        number = self.control.start(self.app, f'submission="{submission.id}"')
        self.submissions.update(submission.id, flower=number)
        self.note(f"run {submission.id} was started{'' if submission.attempts == 0 else ' again'} (Flower's {number}).")

    def _look_after(self, submission: Submission) -> None:
        waits = submission.status == STARTING and time.time() - submission.changed < _STARTING
        if waits or alive(submission.pid):
            return
        # The run may have ended between the two looks at its file and at its process.
        now = self.submissions[submission.id]
        if not now.active or now.status == QUEUED or now.changed != submission.changed:
            return
        self.note(f"run {submission.id} died in {submission.status}; it resumes from its checkpoint.")
        self.submissions.note(submission.id, "the run died; it resumes from its checkpoint.")
        self.submissions.update(submission.id, status=QUEUED, pid=None, reason="its process died.")

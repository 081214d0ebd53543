"""A process that has imported torch and Parley, and forks workers, so that all but the first start at once.

It runs nothing of the user's and sees no data, so a worker it forks is one that has just been started: with the search
path of the process that asks and, as of that moment, its environment, working folder, output and errors. It speaks only
to the process that started it, and ends when that process ends.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import Any, NoReturn

from parley.core.processes import ENDING, search_path

MODULES = ("parley.runtimes.worker", "parley.runtimes.host")
"""Where a worker's `main(descriptors)` may be; imported before anything is forked."""
# From its first moment the process that started it decides when it stops, not who types Ctrl-C or closes the terminal.
_MAIN = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
for number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_DFL:
        signal.signal(number, lambda number, frame: None)
from parley.runtimes.fork_server import serve
serve()
"""
_SLOW = ("parley", "scipy", "sklearn")
_LENGTH = struct.Struct("!I")


class Process:
    """A process that a fork server forked, with what `subprocess.Popen` offers of one."""

    def __init__(self, fork_server: ForkServer) -> None:
        self._server = fork_server
        self._pid: int | None = None
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        """Known once the fork server is up, for which this waits; 0 if it never came up."""
        if self._pid is None:
            self._server.settle()
        return self._pid or 0

    def begun(self, pid: int) -> None:
        self._pid = pid

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.status(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if timeout is not None and deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout)
            time.sleep(0.002)
        return status

    def kill(self) -> None:
        """It keeps its number until `wait` has told how it ended, so nobody else is hit."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """This process's end of a fork server."""

    def __init__(self) -> None:
        self.path, self.owner = search_path(), os.getpid()
        self._line, theirs = socket.socketpair()
        self._starting: list[Process] = []
        self._lock = RLock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": self.path},
                stdin=subprocess.DEVNULL,
            )

    @property
    def usable(self) -> bool:
        """Whether it is there, ours (and not that of a process that forked us), and finds what we find."""
        return self.owner == os.getpid() and self.path == search_path() and self._process.poll() is None

    def start(self, module: str, descriptors: Sequence[int]) -> Process:
        """Fork a process for `module.main(descriptors)`; does not wait for it."""
        order = {"module": module, "folder": str(Path.cwd()), "environ": dict(os.environ), "known": _known()}
        process = Process(self)
        with self._lock, suppress(OSError):  # a fork server that died is found out when the process is asked after
            socket.send_fds(self._line, [b"+"], [*descriptors, 1, 2])
            _send(self._line, order)
            self._starting.append(process)
        return process

    def settle(self) -> None:
        """Receive the process ids of all that were asked for."""
        with self._lock, suppress(OSError, EOFError):
            while self._starting:
                self._starting[0].begun(_receive(self._line))
                del self._starting[0]

    def status(self, pid: int) -> int | None:
        """The exit code of a process that has ended."""
        with self._lock:
            try:
                self.settle()
                self._line.sendall(b"?")
                _send(self._line, pid)
                answer: int | None = _receive(self._line)
            except (OSError, EOFError):  # its workers end with it
                return self._process.wait() or 1
            return answer

    def end(self) -> None:
        self._line.close()
        if self.owner == os.getpid():
            self._process.kill()
            self._process.wait()


_server: ForkServer | None = None


def current() -> ForkServer:
    """This process's fork server, started when it is first needed."""
    global _server
    if _server is None or not _server.usable:
        _server = ForkServer()  # the one before may still have workers, which hold on to it
    return _server


def start(module: str, descriptors: Sequence[int]) -> Process:
    """A worker process on this machine, with one thread, that runs `main` of a module with the files it inherits."""
    return current().start(module, descriptors)


def _known() -> list[str]:
    """What has been imported here of what is slow to import, so that workers find it imported too."""
    return [name for name in sys.modules if name.partition(".")[0] in _SLOW]


def serve() -> None:
    """The fork server itself."""
    line = socket.socket(fileno=int(sys.argv[1]))
    for module in MODULES:
        import_module(module)
    gc.collect()
    gc.freeze()  # what is shared stays shared
    with suppress(EOFError, OSError):
        while True:
            kind, files, *_ = socket.recv_fds(line, 1, 16)
            if not kind:
                break
            order = _receive(line)
            _send(line, _forked(line, order, files) if isinstance(order, dict) else _status(order))
    os._exit(0)


def _forked(line: socket.socket, order: Mapping[str, Any], files: list[int]) -> int:
    for name in order["known"]:
        if name not in sys.modules:
            with suppress(Exception, SystemExit):  # whoever needs it will say so
                import_module(name)
    pid = os.fork()
    if pid == 0:
        line.close()
        _become(order, files)
    for file in files:
        os.close(file)
    return pid


def _become(order: Mapping[str, Any], files: list[int]) -> NoReturn:
    status = 1
    try:
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        *descriptors, out, err = files
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environ"] | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
        import_module(order["module"]).main(descriptors)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(status)


def _status(pid: int) -> int | None:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 1
    return os.waitstatus_to_exitcode(status) if ended else None


def _send(line: socket.socket, item: Any) -> None:
    data = json.dumps(item).encode()
    line.sendall(_LENGTH.pack(len(data)) + data)


def _receive(line: socket.socket) -> Any:
    (length,) = _LENGTH.unpack(_exactly(line, _LENGTH.size))
    return json.loads(_exactly(line, length))


def _exactly(line: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = line.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


@atexit.register
def _end() -> None:
    if _server is not None:
        _server.end()

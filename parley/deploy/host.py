"""A process at a node that has imported what answering a message needs, and forks one that answers for every message.

To import takes seconds, to fork does not. It runs nothing of a study's and sees no data; whoever is forked is as new
as a process that was just started. `flwr-clientapp`, as Flower starts it, only hands its arguments over to it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from parley.core.processes import end_with_parent

MAIN = "from parley.deploy.host import main; main()"
_LONGEST = 65536
_NEEDED = (
    "flwr.app",
    "flwr.clientapp",
    "flwr.supernode.cli.flwr_clientapp",
    "flwr.supernode.runtime.run_clientapp",
    "parley.deploy.answering",
    "parley.deploy.carrier",
)


def main() -> None:
    """Serve at the socket whose path is the argument, until the process that started us ends."""
    end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
    for name in _NEEDED:
        import_module(name)
    from parley.deploy.clientapp import main as answer

    path = Path(sys.argv[1])
    os.chdir(path.parent)  # the path of a socket may have a hundred characters, no more
    with suppress(FileNotFoundError):
        path.unlink()
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path.name)
        path.chmod(0o600)
        door.listen(16)
        while True:
            line, _ = door.accept()
            if os.fork() == 0:
                door.close()
                _answer_once(line, answer)
            line.close()


def _answer_once(line: socket.socket, answer: object) -> None:
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        line.settimeout(10)
        sys.argv = ["flwr-clientapp", *json.loads(line.recv(_LONGEST))]
        line.sendall(b"ok")
        line.close()
        assert callable(answer)
        answer()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(OSError):  # on a full disk
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)

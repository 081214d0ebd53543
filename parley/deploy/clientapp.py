"""What runs at a node for every message, in place of Flower's program of the same name.

Flower would unpack the application that the server sent and run its code. Here the application is thrown away: the
message goes to `answering`, which is installed at the node. The programs for Flower's other kinds of work, which a node
has no use for, refuse to start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import TIMEOUT_MAX, Timer
from typing import Any

from parley.core.processes import end_with, end_with_parent
from parley.deploy.extra import check_flower
from parley.deploy.node_folder import NodeFolder
from parley.deploy.settings import NodeSettings

FOLDER = "PARLEY_NODE"
"""The environment variable that names the node's folder."""
REFUSED = ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")
SOCKET = "host.sock"
_REFUSING = "#!{python}\nfrom parley.deploy.clientapp import refuse\nrefuse()\n"
_ANSWERING = """#!{python} -IS
# Hands its arguments to a process that has imported everything (parley.deploy.host), or takes the time itself.
import json, os, socket, sys
try:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(20)
        os.chdir({folder!r})  # the path of a socket may have a hundred characters, no more
        line.connect({socket!r})
        line.sendall(json.dumps(sys.argv[1:]).encode())
        taken = line.recv(2) == b"ok"
except OSError:
    taken = False
if not taken:
    os.execv({python!r}, [{python!r}, "-c", "from parley.deploy.clientapp import main; main()", *sys.argv[1:]])
"""


def write_programs(folder: Path) -> None:
    """The programs that Flower finds at a node, first on its path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("flwr-clientapp", *REFUSED):
        text = _REFUSING if name in REFUSED else _ANSWERING
        path = folder / name
        path.write_text(text.format(python=sys.executable, folder=str(folder), socket=SOCKET), encoding="utf-8")
        path.chmod(0o700)


def refuse() -> None:
    print(f"{Path(sys.argv[0]).name}: a node of Parley's runs nothing that comes from its server.", file=sys.stderr)
    sys.exit(1)


def main() -> None:
    """Flower's program with both places replaced where it would take code from the server."""
    check_flower()
    import torch
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp as inside

    folder = os.environ[FOLDER]
    for name, instead in (
        ("install_from_fab", lambda *_, **__: None),
        ("get_project_dir", lambda *_, **__: Path(folder)),
        ("get_load_client_app_fn", lambda **_: lambda *_: client_app(folder)),
    ):
        if not hasattr(inside, name):  # then it would do something else than what is known
            sys.exit(f"flwr-clientapp: Flower has no '{name}' to be replaced.")
        setattr(inside, name, instead)
    end_with_parent()
    if "--parent-pid" in sys.argv:  # Flower would go on trying to hand over its answer
        end_with(int(sys.argv[sys.argv.index("--parent-pid") + 1]))
    torch.set_num_threads(1)
    flwr_clientapp()


@contextmanager
def bounded(node: NodeFolder) -> Iterator[None]:
    """End this process, which does nothing else, where an answer takes longer than the node's owner allows."""
    hours = NodeSettings.hours
    with suppress(Exception):  # `answer` finds the same and logs it
        hours = node.settings.hours

    def give_up() -> None:
        with suppress(Exception):
            node.log("given up", answered=f"it would take more than {hours:g} hours")
        os._exit(1)

    timer = Timer(min(hours * 3600, TIMEOUT_MAX), give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def client_app(folder: str) -> Any:
    """The application that answers, as Flower calls it."""
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    from parley.deploy.answering import answer
    from parley.deploy.carrier import bytes_of, record_of
    from parley.deploy.node_folder import NodeFolder

    app = ClientApp()

    def reply(message: Any, context: Any) -> Any:
        import torch

        node = NodeFolder(Path(folder).resolve())
        with suppress(Exception):  # whose text would travel; `answer` finds the same and logs it
            torch.set_num_threads(node.settings.threads)
        with bounded(node):
            return Message(record_of(answer(node, bytes_of(message.content))), reply_to=message)

    app.query()(reply)
    return app

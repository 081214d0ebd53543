"""A whole federation on this machine, to look at: a server and three hospitals as processes of their own, over TLS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from parley.core.errors import ParleyError
from parley.core.processes import free_port, search_path
from parley.deploy.consent import verdict
from parley.deploy.flower import started
from parley.deploy.node_folder import NodeFolder
from parley.deploy.server_folder import ServerFolder
from parley.deploy.submissions import Submission, Submissions

STUDY = """# Tumours of three hospitals: logistic regression by federated averaging.
rounds = 3

[model]
name = "linear"

[algorithm]
name = "fedavg"
lr = 0.5
steps = 20

[evaluate]
every = 3                    # models are judged where the data are, before and after

[faults]
require = ["north", "south", "west"]
"""
HOSPITALS = ("north", "south", "west")
_PATIENCE = 600.0


@dataclass(frozen=True)
class Federation:
    """Folders of a server and of nodes, and the processes that work in them."""

    server: ServerFolder
    nodes: dict[str, NodeFolder]

    def start(self, *who: str) -> list[subprocess.Popen[bytes]]:
        """The server ("server") and nodes by name, as processes in groups of their own."""
        return [_parley(self.server.path.parent / f"{name}.out", *self._command(name)) for name in who]

    def _command(self, name: str) -> Sequence[str]:
        if name == "server":
            return ("deploy", "server", "-f", str(self.server.path))
        return ("deploy", "client", "--node", str(self.nodes[name].path))

    def submit(self, study: Path, *more: str) -> subprocess.Popen[bytes]:
        """`parley deploy run` of a study, as a process."""
        words = ("deploy", "run", str(study), "-f", str(self.server.path), *more)
        return _parley(self.server.path.parent / "run.out", *words)


def demo(folder: Path, say: Callable[[str], None]) -> Submission:
    """Set a federation up in `folder`, let its owners approve a study, train it, and say what happened."""
    federation = prepared(folder)
    say(f"set up in {folder}: a server with an authority of its own, and three hospitals with keys of their own.")
    study = folder / "study.toml"
    study.write_text(STUDY, encoding="utf-8")
    submissions = Submissions(federation.server)
    with ended_at_last(federation.start("server", *HOSPITALS)) as processes:
        say(f"started: the server at port {federation.server.settings.port} (TLS), and three clients that call out.")
        processes.append(federation.submit(study, "--detach"))
        _until(lambda: submissions.all() != [], processes, "the study was not submitted")
        submission = submissions.all()[-1]
        say(f"submitted: study {submission.hash[:12]}; nothing is answered before its owners agree.")
        for name, node in federation.nodes.items():
            _until(lambda node=node: node.studies() != [], processes, f"{name} heard of no study")  # type: ignore[misc]
            waits = verdict(node, node.proposal(submission.hash)).pending
            say(f"{name}: study {submission.hash[:12]} {'waits for its owner' if waits else 'needs nobody'}; approved.")
            node.decide(submission.hash, "approved", note="by the demo")
        shown = 0
        while (submission := submissions[submission.id]).active:
            shown = _more(submissions.log(submission.id), shown, say)
            _until(lambda: True, processes, "")
            time.sleep(0.3)
        _more(submissions.log(submission.id), shown, say)
    for name, node in federation.nodes.items():
        lines = [line for line in node.logged() if line["event"] == "message"]
        sent = sum(int(line["bytes_out"]) for line in lines)
        say(f"{name}: its log has {len(lines)} messages; {sent:,} bytes were sent, no sample among them.")
    return submission


def prepared(folder: Path, samples: int = 120, **settings: object) -> Federation:
    """Folders of a server and three hospitals with embedded data (breast cancer, scikit-learn), registered."""
    options = {"port": free_port(), "bind": "127.0.0.1"} | settings
    server = ServerFolder.create(folder / "server", ["localhost", "127.0.0.1"], **options)
    x, y = load_breast_cancer(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    nodes = {}
    for number, name in enumerate(HOSPITALS):
        rows = slice(number * samples, (number + 1) * samples)
        np.savez(folder / f"{name}.npz", x=x[rows], y=y[rows])
        nodes[name] = NodeFolder.create(folder / name, name)
        nodes[name].point(
            server=f"localhost:{server.settings.port}", ca=server.path / "ca.crt", data=str(folder / f"{name}.npz")
        )
        server.register(nodes[name].path / "node.csr")
    return Federation(server, nodes)


@contextmanager
def ended_at_last(processes: list[subprocess.Popen[bytes]]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Whatever happens, the processes and their groups end with the block."""
    try:
        yield processes
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with suppress(ProcessLookupError):  # what it has left behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _parley(output: Path, *words: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return started([sys.executable, "-c", "from parley.cli.main import main; main()", *words], environment, output)


def _until(done: Callable[[], bool], processes: list[subprocess.Popen[bytes]], otherwise: str) -> None:
    """Wait, but not for ever, and not for those that have ended."""
    until = time.monotonic() + _PATIENCE
    while not done():
        ended = next((process for process in processes if process.poll() not in (None, 0)), None)
        if ended is not None or time.monotonic() > until:
            raise ParleyError(f"{otherwise}; see the files .out and the logs beside them.")
        time.sleep(0.2)


def _more(path: Path, shown: int, say: Callable[[str], None]) -> int:
    """Say what the log has besides the lines that were said before; how many lines it has."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines[shown:]:
        say(line.split(" ", 2)[2])
    return len(lines)

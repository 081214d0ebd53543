"""Flower's programs: in which surroundings they run, and what is asked of them on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parley.core.errors import ParleyError
from parley.core.files import make_folder, write_atomically
from parley.core.processes import search_path
from parley.deploy.extra import program

CONNECTION = "here"
_SECONDS = 120.0
"""How long one of Flower's commands may take."""


def surroundings(home: Path, *first: Path, poll: float = 1.0) -> dict[str, str]:
    """The environment of Flower's programs: offline, quiet, one thread; programs in the folders `first` win.

    `poll`: seconds between two looks for work. A proxy that the environment names is for the way out only.
    """
    direct = [name for name in (os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or "").split(",") if name]
    path = [*map(str, first), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(poll),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": search_path(),
        "PATH": os.pathsep.join(path),
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": ",".join([*direct, "127.0.0.1"]),
        "no_proxy": ",".join([*direct, "127.0.0.1"]),
    }


def started(
    command: Sequence[object], environment: Mapping[str, str], log: Path, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """A program at work in a folder, with a group of processes of its own; what it says goes into `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            list(map(str, command)),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
        )


def end(process: subprocess.Popen[bytes] | None) -> None:
    """End a program and what it has started."""
    if process is None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(5.0)
    process.wait()


@dataclass(frozen=True)
class Control:
    """Flower's control interface, on this machine only."""

    home: Path
    port: int
    ca: Path

    def prepare(self) -> None:
        """Tell Flower's command line where the interface is."""
        make_folder(self.home, private=True)
        text = (
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "127.0.0.1:{self.port}"\n'
            f"root-certificates = {json.dumps(str(self.ca))}\n"
        )
        write_atomically(self.home / "config.toml", text.encode())

    def register(self, public: Path, name: str) -> int | None:
        """The number that Flower gives to a key; None if it has one already."""
        answer = self._ask("supernode", "register", str(public), CONNECTION, "--name", name, "--format", "json")
        number = answer.get("node-id")
        return None if number is None else int(number)

    def unregister(self, number: int) -> None:
        self._ask("supernode", "unregister", str(number), CONNECTION, "--format", "json")

    def start(self, app: Path, config: str) -> int:
        """Start an application; its number. A failure without a number is an error whatever the exit code says."""
        answer = self._ask("run", str(app), CONNECTION, "--run-config", config, "--format", "json")
        number = answer.get("run-id")
        if number is None:
            raise ParleyError(f"Flower did not start the run: {answer.get('error-message') or answer}.")
        return int(number)

    def _ask(self, *words: str) -> dict[str, Any]:
        """What one of Flower's commands says, which it does as JSON after other lines."""
        try:
            done = subprocess.run(
                [program("flwr"), *words],
                env=surroundings(self.home),
                capture_output=True,
                timeout=_SECONDS,
                stdin=subprocess.DEVNULL,
                cwd=self.home,
            )
        except subprocess.TimeoutExpired:
            raise ParleyError(f"'flwr {' '.join(words[:2])}' did not come to an end.") from None
        text = done.stdout.decode(errors="replace")
        try:
            answer = json.loads(text[text.index("{") : text.rindex("}") + 1])
        except ValueError:
            last = (done.stderr.decode(errors="replace") + text).strip().splitlines()[-1:]
            raise ParleyError(f"'flwr {' '.join(words[:2])}' failed: {' '.join(last) or done.returncode}.") from None
        return answer if isinstance(answer, dict) else {}

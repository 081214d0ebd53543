"""Two federations of a server and three nodes on this machine, over TLS and with node keys: Parley's, and Flower's own
programs with an application that knows nothing of Parley. Both train the same."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file
from torch import Tensor

from parley import ParleyError, load_run
from parley.core.processes import free_port
from parley.deploy import carrier, certificates
from parley.deploy.client import POLL
from parley.deploy.demo import HOSPITALS, Federation, ended_at_last, prepared
from parley.deploy.flower import Control, started, surroundings
from parley.deploy.guard import guarded
from parley.deploy.proposal import Proposal
from parley.deploy.submissions import FINISHED, Submissions, submitted_study
from parley_benchmarks import flower_plain

PIXELS, CLASSES = 784, 10
OPEN = 'algorithms = ["fedavg"]\nmodels = ["mlp"]\nrounds = 1000\n'
_PATIENCE = 600.0
_PROJECT = """[project]
name = "plain-fedavg"
version = "1.0.0"
description = "Federated averaging."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "parley"

[tool.flwr.app.components]
serverapp = "plain.server:app"
clientapp = "plain.client:app"

[tool.flwr.app.config]
"""


@dataclass(frozen=True)
class Size:
    """A multilayer perceptron and the steps that a node takes with it in a round."""

    hidden: int
    steps: int = 5
    lr: float = 0.05
    samples: int = 60

    @property
    def megabytes(self) -> float:
        return 4e-6 * (PIXELS * self.hidden + self.hidden + self.hidden * CLASSES + CLASSES)


@dataclass(frozen=True)
class Chunk:
    """A few rounds in a row."""

    seconds: Sequence[float]
    """From the end of each round to the end of the next; the first round is not among them."""
    weights: dict[str, Tensor]


class Parley:
    """The deployment as its users have it."""

    name = "parley"

    def __init__(self, folder: Path) -> None:
        self.federation: Federation = prepared(folder, enrolment=_PATIENCE)
        self.submissions = Submissions(self.federation.server)
        for node in self.federation.nodes.values():
            (node.path / "policy.toml").write_text(OPEN)
            node.set(test_fraction=0.0)

    def start(self) -> list[subprocess.Popen[bytes]]:
        return self.federation.start("server", *HOSPITALS)

    def data(self, name: str) -> Path:
        return Path(str(self.federation.nodes[name].settings.data))

    def ready(self) -> bool:
        return len(self.federation.server.numbers()) == len(HOSPITALS)

    def train(self, size: Size, rounds: int, alive: Callable[[], None]) -> Chunk:
        written = {"table": self._study(size, rounds), "base": "."}
        submission, _ = self.submissions.submit(
            written, Proposal.of(submitted_study(written)), again=True, resume=False
        )
        ended: dict[int, float] = {}
        log = self.submissions.log(submission.id)
        while True:
            now = self.submissions[submission.id]  # before its log, so that nothing is missed of a run that has ended
            for number in re.findall(r"round (\d+): asked 3, answered 3", log.read_text() if log.exists() else ""):
                ended.setdefault(int(number), time.perf_counter())
            if not now.active:
                break
            alive()
            time.sleep(0.01)
        if now.status != FINISHED or len(ended) < rounds:
            raise ParleyError(f"the run of Parley's federation {now.status}: {now.reason}")
        state = load_run(self.federation.server.store, str(now.run)).state
        return Chunk(np.diff(sorted(ended.values())).tolist(), dict(state["model"]))

    @staticmethod
    def _study(size: Size, rounds: int) -> dict[str, Any]:
        return {
            "rounds": rounds,
            "model": {"name": "mlp", "hidden": [size.hidden]},
            "algorithm": {"name": "fedavg", "lr": size.lr, "steps": size.steps, "batch": 0},
            "evaluate": {"clients": "none"},
            "faults": {"require": list(HOSPITALS)},
        }


class Plain:
    """Flower's own programs, in the same surroundings, each node connected to Flower's server without a front."""

    name = "plain Flower app"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        certificates.make_authority(folder)
        certificates.make_certificate(folder, "server", ["localhost", "127.0.0.1"], 30)
        self.control = Control(folder / "flower", free_port(), folder / "ca.crt")
        self.control.prepare()
        app = folder / "app"
        shutil.copytree(Path(flower_plain.__file__).parent, app / "plain", ignore=shutil.ignore_patterns("__pycache__"))

    def start(self, keys: dict[str, Path], data: dict[str, Path]) -> Iterator[subprocess.Popen[bytes]]:
        """The server, and the nodes once their keys are known."""
        words: dict[str, object] = {
            "--ssl-ca-certfile": "ca.crt",
            "--ssl-certfile": "server.crt",
            "--ssl-keyfile": "server.key",
            "--host": "127.0.0.1",
            "--port": self.control.port,
            "--database": "flower/state.db",
        }
        yield self._started(guarded("flower-superlink", words, "--enable-supernode-auth"), poll=1.0)
        until = time.monotonic() + _PATIENCE
        for name, key in keys.items():
            while self._number(key.with_name("node.pub"), name) is None:
                if time.monotonic() > until:
                    raise ParleyError("Flower's server took no keys; is something wrong with it?")
            words = {
                "--superlink": f"127.0.0.1:{self.control.port}",
                "--root-certificates": "ca.crt",
                "--auth-supernode-private-key": key,
                "--port": free_port(),
                "--node-config": f'data="{data[name]}"',
            }
            yield self._started(guarded("flower-supernode", words), poll=POLL)

    def _number(self, key: Path, name: str) -> int | None:
        try:
            return self.control.register(key, name)
        except ParleyError:  # it does not listen yet
            return None

    def _started(self, command: Sequence[object], poll: float) -> subprocess.Popen[bytes]:
        return started(command, surroundings(self.control.home, poll=poll), self.folder / "flower.log", self.folder)

    def train(self, size: Size, rounds: int, initial: dict[str, Tensor], alive: Callable[[], None]) -> Chunk:
        save_file(initial, self.folder / "weights.safetensors")
        ended = self.folder / "ended.json"
        ended.unlink(missing_ok=True)
        config = {
            "folder": str(self.folder),
            "nodes": len(HOSPITALS),
            "poll": carrier.POLL,
            "rounds": rounds,
            "hidden": size.hidden,
            "classes": CLASSES,
            "lr": size.lr,
            "steps": size.steps,
        }
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items())
        (self.folder / "app" / "pyproject.toml").write_text(_PROJECT + lines)
        self.control.start(self.folder / "app", "")
        until = time.monotonic() + _PATIENCE
        while not ended.exists() or not ended.stat().st_size:
            alive()
            if time.monotonic() > until:
                raise ParleyError("the plain application did not come to its end.")
            time.sleep(0.1)
        times = json.loads(ended.read_text())
        return Chunk(np.diff(times[1:]).tolist(), load_file(self.folder / "final.safetensors"))


@contextmanager
def both(folder: Path, seed: int) -> Iterator[tuple[Parley, Plain, Callable[[], None]]]:
    """Both federations at work on the same samples; the function raises if a process of theirs has ended."""
    ours, plain = Parley(folder), Plain(folder / "plain")
    random, data = np.random.default_rng(seed), {name: ours.data(name) for name in HOSPITALS}
    for path in data.values():
        x = random.standard_normal((Size.samples, PIXELS), dtype=np.float32)
        np.savez(path, x=x, y=np.arange(Size.samples) % CLASSES)
    with ended_at_last([]) as processes:
        processes += ours.start()
        for process in plain.start(
            {name: node.path / "node.key" for name, node in ours.federation.nodes.items()}, data
        ):
            processes.append(process)

        def alive() -> None:
            if any(process.poll() is not None for process in processes):
                raise ParleyError("a process of the two federations has ended before its time.")

        until = time.monotonic() + _PATIENCE
        while not ours.ready():
            alive()
            if time.monotonic() > until:
                raise ParleyError("the nodes of Parley's federation were not registered in time.")
            time.sleep(0.1)
        yield ours, plain, alive

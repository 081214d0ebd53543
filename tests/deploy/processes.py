"""A federation of real processes over TLS on this machine, for the tests that kill, starve and besiege it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from parley.data import Federation
from parley.data.sources import InMemory
from parley.deploy.demo import Federation as Deployed
from parley.deploy.demo import ended_at_last, prepared
from parley.deploy.node_data import agreed, described, fitted, load_data
from parley.deploy.proposal import Proposal
from parley.deploy.submissions import Submission, Submissions, submitted_study
from parley.engine.run import Run
from parley.study.stored import load_run
from parley.study.train import train

OPEN = 'algorithms = ["*"]\nmodels = ["*"]\nchannels = ["*"]\nrounds = 6\nruns = 100\n'
PATIENCE = 900.0


def until(done: Callable[[], object], what: str, patience: float = PATIENCE) -> object:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        found = done()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"waited in vain: {what}")


class Bench:
    """A federation whose processes can be killed and started again."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.deployed: Deployed = prepared(
            place, samples=60, enrolment=240.0, decision=240.0, wait=240.0, reply_megabytes=1.0
        )
        self.folder, self.nodes = self.deployed.server, self.deployed.nodes
        self.submissions = Submissions(self.folder)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for node in self.nodes.values():
            (node.path / "policy.toml").write_text(OPEN)

    def start(self, *who: str) -> None:
        self.processes |= dict(zip(who, self.deployed.start(*who), strict=True))

    def log(self) -> str:
        return self.folder.log.read_text() if self.folder.log.exists() else ""

    def table(self, name: str = "fedavg", rounds: int = 2, **sections: object) -> dict[str, object]:
        return {
            "rounds": rounds,
            "model": {"name": "mlp", "hidden": [5]},
            "algorithm": {"name": name, "lr": 0.1, "steps": 4, "batch": 7},
            "evaluate": {"every": rounds},
        } | sections

    def submit(self, table: dict[str, object], *, again: bool = False, resume: bool = False) -> Submission:
        written = {"table": table, "base": str(self.place)}
        proposal = Proposal.of(submitted_study(written), self.folder.nodes())
        return self.submissions.submit(written, proposal, again=again, resume=resume)[0]

    def ended(self, one: Submission) -> Submission:
        until(lambda: not self.submissions[one.id].active, f"the end of {one.id}")
        return self.submissions[one.id]

    def said(self, one: Submission) -> str:
        path = self.submissions.log(one.id)
        return path.read_text() if path.exists() else ""

    def reaches(self, one: Submission, text: str) -> None:
        until(lambda: text in self.said(one) or not self.submissions[one.id].active, f"{text} in {one.id}")
        assert text in self.said(one), self.said(one)

    def inline(self, table: dict[str, object]) -> Run:
        """The same study in this process, on the nodes' data."""
        own = {name: load_data(node.settings, node.path) for name, node in self.nodes.items()}
        info, _ = agreed({name: described(data) for name, data in own.items()})
        clients = tuple(fitted(data.train, data.info, info) for data in own.values())
        held_out = InMemory(tuple(fitted(data.test, data.info, info) for data in own.values() if data.test))
        federation = Federation(info, tuple(own), InMemory(clients), held_out=held_out)
        study = submitted_study({"table": table, "base": "."})
        return train(replace(study, data=federation, runtime="inline", device="cpu"))

    def same_as_inline(self, one: Submission, table: dict[str, object]) -> None:
        assert one.status == "finished", (one.reason, self.said(one))
        expected, found = self.inline(table), load_run(self.folder.store, str(one.run))
        assert expected.state.tensors.keys() == found.state.tensors.keys()
        for name, value in expected.state.tensors.items():
            assert torch.equal(value, found.state.tensors[name]), name
        for ours, theirs in zip(expected.records, found.records, strict=True):
            for name in ("clients/loss", "clients/accuracy", "up/bytes", "down/bytes"):
                assert (name in ours.metrics) == (name in theirs.metrics)
                if name in ours.metrics:
                    assert ours.metrics[name] == theirs.metrics[name], name

    def flower_of(self, name: str) -> int:
        """The process of Flower at a node or at the server, as its log says."""
        path = self.folder.log if name == "server" else self.nodes[name].path / "client.log"
        return int(re.findall(r"\(process (\d+)\)", path.read_text())[-1])


@contextmanager
def federation(place: Path, *who: str) -> Iterator[Bench]:
    """A federation in a folder, some of it started; nothing of it is left at the end."""
    made = Bench(place)
    try:
        made.start(*who)
        yield made
    finally:
        with ended_at_last(list(made.processes.values())):
            pass
        until(lambda: not leftovers(place), f"the end of {leftovers(place)}", 60)


def leftovers(place: Path) -> list[str]:
    """Processes that still work in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and str(place) in json.dumps([process.cmdline(), dict(process.environ())]):
                found.append(" ".join(process.cmdline())[:200])
        except (psutil.Error, OSError):
            continue
    return found

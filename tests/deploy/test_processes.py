"""Real processes over TLS on this machine: what a deployment computes, who is kept out, and what survives.

One federation serves all tests of this file; each test leaves it as it found it, three nodes connected.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

import psutil
import pytest
import torch

from parley.algorithms.statistics import FederatedStatistics
from parley.cli.main import main
from parley.core.processes import free_port
from parley.data import Federation
from parley.data.sources import InMemory
from parley.deploy import certificates, keys
from parley.deploy.demo import HOSPITALS, ended_at_last, prepared
from parley.deploy.demo import Federation as Deployed
from parley.deploy.extra import program
from parley.deploy.flower import Control, surroundings
from parley.deploy.node_data import agreed, described, fitted, load_data
from parley.deploy.proposal import Proposal
from parley.deploy.submissions import Submission, Submissions, submitted_study
from parley.engine.run import Run
from parley.study.load import load_run
from parley.study.statistics import statistics_table
from parley.study.study import study_table
from parley.study.toml_text import to_toml
from parley.study.train import train

OPEN = 'algorithms = ["*"]\nmodels = ["*"]\nchannels = ["*"]\nrounds = 6\n'
PATIENCE = 900.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


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
        self.deployed: Deployed = prepared(place, samples=60, enrolment=240.0, wait=240.0, reply_megabytes=1.0)
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
            "rounds": rounds, "model": {"name": "mlp", "hidden": [5]},
            "algorithm": {"name": name, "lr": 0.1, "steps": 4, "batch": 7}, "evaluate": {"every": rounds},
        } | sections  # fmt: skip

    def submit(self, table: dict[str, object], *, again: bool = False, resume: bool = False) -> Submission:
        written = {"table": table, "base": str(self.place)}
        return self.submissions.submit(written, Proposal.of(submitted_study(written)), again=again, resume=resume)[0]

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
        assert one.status == "finished", (one.said, self.said(one))
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


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("federation"))
    everything: list[subprocess.Popen[bytes]] = []
    try:
        made.start("server", *HOSPITALS)
        yield made
    finally:
        everything += made.processes.values()
        with ended_at_last(everything):
            pass
        until(lambda: not leftovers(made.place), f"the end of {leftovers(made.place)}", 60)


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


# --- what it computes ---


def test_no_code_of_the_servers_runs_at_a_node_and_results_are_those_of_inline(bench: Bench):
    """The application that Flower hands to nodes would leave a mark; nobody runs it."""
    until(lambda: (bench.folder.path / "flower" / "app" / "parley_app" / "client.py").exists(), "the application")
    mark = bench.place / "mark"
    code = "import pathlib\nimport flwr.clientapp as flower\n\n"
    code += f"pathlib.Path({str(mark)!r}).touch()\napp = flower.ClientApp()\n"
    (bench.folder.path / "flower" / "app" / "parley_app" / "client.py").write_text(code)
    table = bench.table()
    one = bench.ended(bench.submit(table))
    bench.same_as_inline(one, table)
    assert not mark.exists()
    assert "round 1: asked 3, answered 3" in bench.said(one)
    for node in bench.nodes.values():
        lines = [line for line in node.logged() if line.get("answered") == "reply"]
        assert len(lines) == 2


@pytest.mark.parametrize(
    ("name", "more"), [("scaffold", {}), ("fedals", {"alpha": 2}), ("fedavg", {"optimizer": "adam", "keep": True})]
)
def test_methods_with_memories_give_the_bits_of_inline(bench: Bench, name: str, more: dict[str, object]):
    table = bench.table(name, algorithm={"name": name, "lr": 0.1, "steps": 4} | more)
    bench.same_as_inline(bench.ended(bench.submit(table)), table)


def test_statistics_are_asked_for_frozen_and_trained_with(bench: Bench, tmp_path: Path, capfd):
    table = bench.table()
    (tmp_path / "study.toml").write_text(to_toml(table) or "")
    with pytest.raises(SystemExit) as ended:
        main(["stats", str(tmp_path / "study.toml"), "-f", str(bench.folder.path),
              "--freeze", str(tmp_path / "frozen.toml")])  # fmt: skip
    out = capfd.readouterr().out
    assert ended.value.code == 0, out
    assert "3 of 3 clients told of theirs" in out
    bench.same_as_inline(bench.submissions["last"], statistics_table(table, FederatedStatistics()))
    frozen = study_table(tmp_path / "frozen.toml")
    assert len(frozen["preprocessing"]["center"]) == len(frozen["preprocessing"]["scale"]) > 1
    bench.same_as_inline(bench.ended(bench.submit(frozen)), frozen)


def test_a_study_submitted_twice_runs_once(bench: Bench):
    table = bench.table(seed=11)
    first = bench.submit(table)
    assert bench.submit(table).id == first.id
    done = bench.ended(first)
    assert bench.submit(table).run == done.run
    assert bench.submissions[first.id].attempts == 1


# --- consent ---


def test_a_study_that_nobody_approved_does_not_run(bench: Bench):
    for node in bench.nodes.values():
        (node.path / "policy.toml").write_text("")
    try:
        one = bench.submit(bench.table(seed=21))
        bench.reaches(one, "west its owner has not approved")
        bench.submissions.ask_to_stop(one.id)
        done = bench.ended(one)
    finally:
        for node in bench.nodes.values():
            (node.path / "policy.toml").write_text(OPEN)
    assert done.status == "stopped"
    assert done.run is None
    for node in bench.nodes.values():
        assert not node.run(one.run_name).exists()


def test_a_policy_exceeded_in_round_seven_stops_the_run_at_its_checkpoint(bench: Bench):
    """Six rounds are approved in advance. The seventh asks the owners, of whom one says no."""
    table = bench.table(rounds=6, seed=31, evaluate={"every": 6, "clients": "none"}, faults={"quorum": 1.0})
    assert bench.ended(bench.submit(table)).status == "finished"
    longer = table | {"rounds": 7}
    one = bench.submit(longer, resume=True)
    until(lambda: all(one.hash in node.studies() for node in bench.nodes.values()), "the proposal")
    for name, node in bench.nodes.items():
        node.decide(one.hash, "rejected" if name == "south" else "approved")
    done = bench.ended(one)
    assert done.status == "stopped"
    assert "round 7: only 2 of 3 clients answered" in done.said
    assert "its owner rejected study" in done.said
    assert load_run(bench.folder.store, str(done.run)).records[-1].number == 6


# --- faults ---

SLOW = {"name": "fedavg", "lr": 0.01, "steps": 4000, "batch": 7}
"""Rounds of some seconds, in which there is time to kill somebody."""


def answering(bench: Bench, name: str) -> bool:
    """Whether a node computes at the moment: its host has forked a process."""
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if "parley.deploy.host" in words and str(bench.nodes[name].path) in words and process.children():
                return True
        except psutil.Error:
            continue
    return False


def test_a_node_killed_in_a_round_is_left_out_and_comes_back(bench: Bench):
    table = bench.table(
        rounds=6, seed=41, algorithm=SLOW, faults={"deadline": 60.0}, evaluate={"every": 6, "clients": "none"}
    )
    one = bench.submit(table)
    bench.reaches(one, "0 are done")
    until(lambda: answering(bench, "south"), "work at south")
    os.killpg(bench.flower_of("south"), signal.SIGKILL)
    done = bench.ended(one)
    assert done.status == "finished", (done.said, bench.said(one))
    said = bench.said(one)
    assert "answered 2; missing: south" in said
    assert "round 6: asked 3, answered 3" in said
    assert "Flower ended with -9" in (bench.nodes["south"].path / "client.log").read_text()


@pytest.mark.parametrize("victim", ["Flower", "the server"])
def test_a_server_killed_in_a_round_goes_on_from_its_checkpoint_with_the_same_numbers(bench: Bench, victim: str):
    seed = 51 if victim == "Flower" else 52
    table = bench.table("scaffold", 3, seed=seed, algorithm={"name": "scaffold", "lr": 0.01, "steps": 1500})
    one = bench.submit(table)
    bench.reaches(one, "round 1: asked 3, answered 3")
    if victim == "Flower":
        os.kill(bench.flower_of("server"), signal.SIGKILL)
    else:
        os.kill(bench.processes["server"].pid, signal.SIGKILL)
        bench.processes["server"].wait()
        time.sleep(2)
        bench.start("server")
    done = bench.ended(one)
    assert done.attempts >= 2
    bench.same_as_inline(done, table)
    assert "it goes on from its checkpoint" in bench.log()


@pytest.mark.parametrize(
    ("sends", "why"),
    [
        ("b'garbage' * 100", "sent bytes that are no reply"),
        ("bytes(100 * 2**20)", "more than the 1000000 that are allowed"),
        ("poisoned(data)", "sent NaN or infinite numbers"),
    ],
    ids=["garbage", "100 MB", "NaN"],
)
def test_a_hostile_node_is_left_out_and_named(bench: Bench, sends: str, why: str):
    program_ = bench.nodes["west"].path / "programs" / "flwr-clientapp"
    good = program_.read_text()
    program_.write_text(HOSTILE.format(python=sys.executable, sends=sends))
    try:
        seed = 60 + len(sends)
        one = bench.submit(bench.table(rounds=1, seed=seed, evaluate={"every": 1, "clients": "none"}))
        done = bench.ended(one)
    finally:
        program_.write_text(good)
    assert done.status == "finished", (done.said, bench.said(one))
    assert "round 1: asked 3, answered 2; missing: west" in bench.said(one)
    assert why in bench.said(one)


HOSTILE = """#!{python}
import parley.deploy.answering as module
from parley.core.message import Message
from parley.core.wire import decode, encode
from parley.deploy.clientapp import main
from parley.runtimes.frame import pack, unpack


def poisoned(data):
    head, parts = unpack(data)
    sent = decode(parts[0], Message)
    bad = Message({{name: value * float("nan") for name, value in sent.tensors.items()}}, sent.scalars)
    return pack(head, encode(bad), parts[1])


honest = module.answer


def answer(folder, message):
    data = honest(folder, message)
    return {sends} if unpack(data)[0]["kind"] == "reply" else data


module.answer = answer
main()
"""


# --- who is kept out ---


def trusted(bench: Bench) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=bench.folder.path / "ca.crt")


def test_an_outsider_with_the_authoritys_certificate_gets_nowhere(bench: Bench, tmp_path: Path):
    """With Flower's own command line and by hand: no key registered, no runs listed, no application started."""
    port = bench.folder.settings.port
    until(lambda: "nodes are served" in bench.log(), "the server")
    outside = Control(tmp_path / "home", port, bench.folder.path / "ca.crt")
    outside.prepare()
    keys.make_key(tmp_path / "k", tmp_path / "k.pub", "evil")
    for words in (
        ("supernode", "register", str(tmp_path / "k.pub"), "here"), ("list", "here"),
        ("run", str(bench.folder.path / "flower" / "app"), "here"),
    ):  # fmt: skip
        done = subprocess.run(
            [program("flwr"), *words], env=surroundings(outside.home), capture_output=True, timeout=300, cwd=tmp_path
        )
        assert done.returncode != 0, (words, done.stdout)
    for path in ("/v1/control/list-runs", "/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/x", "/"):
        line = http.client.HTTPSConnection("localhost", port, context=trusted(bench), timeout=30)
        line.request("POST", path, body=b"")
        assert line.getresponse().status == 403
        line.close()
    assert "POST /v1/control/register-node refused with 403" in bench.log()
    assert len(bench.folder.nodes()) == 3


def supernode(bench: Bench, home: Path, *more: str) -> str:
    """What Flower's own node program says when it tries to connect with these options, until it ends."""
    home.mkdir(exist_ok=True)
    with (home / "out").open("wb") as output:
        node = subprocess.Popen(
            [
                program("flower-supernode"), "--superlink", f"localhost:{bench.folder.settings.port}",
                "--port", str(free_port()), "--max-retries", "1", *more,
            ],
            env=surroundings(home), cwd=home, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    with ended_at_last([node]):
        node.wait(300)
    said = (home / "out").read_text()
    assert "SuperNode ID" not in said
    return said


def test_unknown_and_revoked_keys_plaintext_and_another_authority_are_kept_out(bench: Bench, tmp_path: Path):
    until(lambda: "nodes are served" in bench.log(), "the server")
    ca = ("--root-certificates", str(bench.folder.path / "ca.crt"))
    keys.make_key(tmp_path / "k", tmp_path / "k.pub", "evil")
    own = ("--auth-supernode-private-key", str(tmp_path / "k"))
    supernode(bench, tmp_path / "unknown", *ca, *own)
    refused = "activate-node refused with 401: no registered key"
    assert bench.log().count(refused) == 1
    assert "SuperNode ID" not in supernode(bench, tmp_path / "plain", "--insecure")
    certificates.make_authority(tmp_path)
    other = ("--root-certificates", str(tmp_path / "ca.crt"))
    assert "CERTIFICATE_VERIFY_FAILED" in supernode(bench, tmp_path / "other", *other, *own)
    bench.folder.register(tmp_path / "k.pub", "late")
    until(lambda: "node late is registered" in bench.log(), "the registration")
    bench.folder.revoke("late")
    until(lambda: "a node was revoked" in bench.log(), "the revocation")
    supernode(bench, tmp_path / "revoked", *ca, *own)
    assert bench.log().count(refused) == 2


def test_a_server_with_an_expired_certificate_does_not_start(bench: Bench, tmp_path: Path, capfd):
    other = prepared(tmp_path, samples=20)
    certificates.make_certificate(other.server.path, certificates.SERVER, ["localhost"], -1)
    with pytest.raises(SystemExit) as ended:
        main(["deploy", "server", "-f", str(other.server.path)])
    assert ended.value.code == 2
    assert "expired" in capfd.readouterr().err


class Proxy:
    """A proxy that knows CONNECT alone, as a hospital may have; it can be stopped and started again."""

    def __init__(self) -> None:
        self.port, self.connections = free_port(), 0
        self.start()

    def start(self) -> None:
        self.door = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
        self.lines: list[socket.socket] = []
        Thread(target=self._accept, args=(self.door,), daemon=True).start()

    def stop(self) -> None:
        self.door.shutdown(socket.SHUT_RDWR)
        self.door.close()
        for line in self.lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _accept(self, door: socket.socket) -> None:
        with suppress(OSError):
            while True:
                line, _ = door.accept()
                Thread(target=self._tunnel, args=(line,), daemon=True).start()

    def _tunnel(self, line: socket.socket) -> None:
        with suppress(OSError):
            head = line.recv(65536).decode()
            method, place, _ = head.split(" ", 2)
            assert method == "CONNECT"
            host, _, port = place.rpartition(":")
            there = socket.create_connection((host, int(port)))
            self.connections += 1
            self.lines += [line, there]
            line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            Thread(target=self._copy, args=(there, line), daemon=True).start()
            self._copy(line, there)

    @staticmethod
    def _copy(source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                to.sendall(data)
        with suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)


def test_a_node_behind_a_proxy_survives_that_the_proxy_is_stopped(bench: Bench, tmp_path: Path):
    keys.make_key(tmp_path / "k", tmp_path / "k.pub", "proxied")
    bench.folder.register(tmp_path / "k.pub", "proxied")
    proxy, output = Proxy(), tmp_path / "out"
    try:
        until(lambda: "node proxied is registered" in bench.log(), "the registration")
        with output.open("wb") as file:
            node = subprocess.Popen(
                [
                    program("flower-supernode"), "--superlink", f"localhost:{bench.folder.settings.port}",
                    "--port", str(free_port()), "--root-certificates", str(bench.folder.path / "ca.crt"),
                    "--auth-supernode-private-key", str(tmp_path / "k"),
                ],
                env=surroundings(tmp_path) | {"HTTPS_PROXY": f"http://127.0.0.1:{proxy.port}"}, cwd=tmp_path,
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        with ended_at_last([node]):
            until(lambda: b"SuperNode ID" in output.read_bytes(), "the connection through the proxy")
            before = proxy.connections
            proxy.stop()
            until(lambda: b"Connection attempt failed" in output.read_bytes(), "the node to notice")
            proxy.start()
            until(lambda: proxy.connections > before, "the node to come back")
            time.sleep(5)
            assert node.poll() is None
    finally:
        proxy.stop()
        bench.folder.revoke("proxied")

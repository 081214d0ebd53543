"""Real processes over TLS on this machine: what a deployment computes, what consent stops, and what survives.

One federation serves all tests of this file; each test leaves it as it found it, three nodes connected.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from parley.cli.main import main
from parley.deploy.demo import HOSPITALS
from parley.statistics.method import FederatedStatistics
from parley.statistics.run import statistics_table
from parley.study.stored import load_run
from parley.study.toml import study_table, to_toml

from .processes import OPEN, Bench, federation, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with federation(tmp_path_factory.mktemp("federation"), "server", *HOSPITALS) as made:
        yield made


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


def test_statistics_are_asked_for_frozen_and_trained_with(bench: Bench, tmp_path: Path, capfd):
    table = bench.table()
    (tmp_path / "study.toml").write_text(to_toml(table) or "")
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "stats",
                str(tmp_path / "study.toml"),
                "-f",
                str(bench.folder.path),
                "--freeze",
                str(tmp_path / "frozen.toml"),
            ]
        )
    out = capfd.readouterr().out
    assert ended.value.code == 0, out
    assert "of 3 out of 3 clients" in out
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
    assert "round 7: only 2 of 3 clients answered" in done.reason
    assert "its owner rejected study" in done.reason
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
    assert done.status == "finished", (done.reason, bench.said(one))
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
    assert "it resumes from its checkpoint" in bench.log()


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
    assert done.status == "finished", (done.reason, bench.said(one))
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

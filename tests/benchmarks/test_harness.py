"""Races between real child processes: turns, agreement, sleeping contestants, and contestants that fail."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from parley.core.errors import InputError
from parley_benchmarks.environments import installed
from parley_benchmarks.harness import Child, ContestantError, race
from parley_benchmarks.races import bench
from parley_benchmarks.roster import Entrant, chosen, roster
from parley_benchmarks.work import write_work
from parley_benchmarks.workloads import workload

OWN = {"": Path(sys.executable)}
PLAIN = Entrant("plain", "plain", "plain")


def falls_asleep(process: psutil.Process) -> bool:
    """Whether a process stops soon; the kernel may take a moment to deliver the signal on a busy machine."""
    deadline = time.monotonic() + 10
    while process.status() != psutil.STATUS_STOPPED:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.long
def test_two_loops_race_and_agree() -> None:
    said: list[str] = []
    small = workload("LR-MNIST", "smoke", cores=1)
    laps = race(small, [PLAIN, replace(PLAIN, name="again")], OWN, said.append)
    assert all(len(lap.seconds) == small.repeats and min(lap.seconds) > 0 for lap in laps)
    assert all(0 <= cpu < 60 for lap in laps for cpu in lap.cpu)
    assert all(lap.peak > 50e6 for lap in laps)
    assert all(lap.early[name].equal(w) for lap in laps for name, w in laps[0].early.items())
    assert all(lap.final[name].equal(w) for lap in laps for name, w in laps[0].final.items())
    turns = [line.split(", ")[1].split()[0] for line in said if "chunk" in line]
    assert turns == ["plain", "again", "again", "plain"]


@pytest.mark.long
def test_bare_loops_take_part_without_parameters() -> None:
    (result,) = bench(["CIFAR10-CNN"], "smoke", cores=1, contestants=["plain", "bare"])
    bare = next(s for s in result.standings if s.name == "bare")
    assert bare.early_difference is None
    assert bare.median > 0
    assert result.passed
    assert all(check.passed is None for check in result.checks if "parley" in check.claim)


@pytest.mark.long
def test_a_contestant_sleeps_until_it_is_asked_and_leaves_nothing_behind(tmp_path: Path) -> None:
    write_work(workload("EMPTY", "smoke"), tmp_path)
    with Child(PLAIN, OWN[""], tmp_path, 1, tmp_path / "log") as child:
        child.ask()
        process = psutil.Process(child.process.pid)
        assert falls_asleep(process)
        assert child.ask(do="run", start=0, stop=1)["seconds"] > 0
        assert falls_asleep(process)
    assert not process.is_running()


def test_an_unknown_command_is_an_error_with_its_reason(tmp_path: Path) -> None:
    write_work(workload("EMPTY", "smoke"), tmp_path)
    with Child(PLAIN, OWN[""], tmp_path, 1, tmp_path / "log") as child:
        child.ask()
        with pytest.raises(ContestantError, match="'plain' failed: ValueError: no command is called 'dance'"):
            child.ask(do="dance")


def test_a_contestant_that_cannot_start_is_named() -> None:
    with pytest.raises(ContestantError, match="'ghost' failed: it ended without an answer"):
        race(workload("EMPTY", "smoke"), [Entrant("ghost", "ghost", "no_such_module")], OWN)


def test_rosters_fill_the_cores() -> None:
    two = replace(workload("CIFAR10-CNN", "smoke"), cores=2)
    assert [e.name for e in roster(two) if e.group == "pfl"] == ["pfl 1x2", "pfl 2x1"]
    assert all(e.processes * e.threads == 2 for e in roster(two))
    one = replace(two, cores=1)
    assert [e.name for e in roster(one) if e.group == "pfl"] == ["pfl 1x1"]
    assert {e.name for e in chosen(roster(two), ["pfl", "bare"])} == {"pfl 1x2", "pfl 2x1", "bare"}
    with pytest.raises(InputError, match="did you mean 'plain'"):
        chosen(roster(two), ["plane"])


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("LR-MNIST", "pfl"),
        ("CIFAR10-CNN", "pfl"),
        ("EMPTY", "pfl"),
        ("MLP-FMNIST", "flower"),
        ("CROWD", "jax"),
        ("MLP-FMNIST", "jax"),
    ],
)
def test_peers_end_with_the_plain_loops_parameters(name: str, peer: str) -> None:
    if installed(peer) is None:
        reason = f"{peer} is not installed for the benchmark; run `parley bench` once"
        (pytest.fail if "peers" in os.environ.get("PARLEY_REQUIRE", "") else pytest.skip)(reason)
    (result,) = bench([name], "smoke", contestants=["plain", peer])
    assert len(result.standings) > 1
    assert result.passed, result.checks

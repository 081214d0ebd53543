"""Measurements of Parley alone: small ones really run, and verdicts follow from the figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from parley.core.errors import InputError
from parley_benchmarks import boost_cost, many_memories, method_cost, ray_gain, start_cost, step_cost, tune_gain
from parley_benchmarks.harness import Lap
from parley_benchmarks.many_memories import Diary, Population
from parley_benchmarks.probes import ON_REQUEST, PROBES
from parley_benchmarks.races import bench
from parley_benchmarks.step_cost import ALPHA, ARRANGEMENTS, Lane, measure, variants


def test_memories_survive_a_kill_and_are_all_the_right_ones():
    (result,) = bench(["scaffold-100k"], "smoke")
    everyone, mean, *judged = result.checks
    assert everyone.passed
    assert everyone.value == 60
    assert mean.passed
    assert all(check.passed is None and check.value is not None and check.value > 0 for check in judged)
    json.dumps(result.as_json(), allow_nan=False)


@pytest.mark.long
def test_channels_are_timed_beside_a_clients_round():
    (result,) = bench(["channel-cost"], "smoke")
    assert {"client's round", "top-k(0.01) send", "qsgd(4) receive"} <= {one.name for one in result.standings}
    assert all(check.passed is None and check.value is not None and check.value > 0 for check in result.checks)
    json.dumps(result.as_json(), allow_nan=False)


def test_a_round_of_ntk_fl_is_timed_beside_its_recursion():
    (result,) = bench(["ntk-round"], "smoke")
    *timed, same = result.checks
    assert same.passed
    assert all(check.passed is None and check.value is not None and check.value > 0 for check in timed)
    json.dumps(result.as_json(), allow_nan=False)


@pytest.mark.slow
def test_a_crowd_of_five_thousand_stays_small(monkeypatch: pytest.MonkeyPatch):
    """1.6 GB of memories; the same promises as at full size, with a cohort half as large."""
    monkeypatch.setattr(many_memories, "FULL", Population(clients=5000, cohort=250, new=200, more=8, checkpoint=1.0))
    result = many_memories.measure("full")
    disk = next(check for check in result.checks if "on disk" in check.claim)
    assert all(check.passed for check in result.checks if check is not disk), result.checks
    assert disk.value < 1.4  # versions since the last checkpoint weigh more in a small crowd


def diary(resident: list[int], peak: int = 10**9, **end: float) -> Diary:
    return Diary([1.0] * len(resident), [1.0] * len(resident), resident, peak, end)


@pytest.mark.parametrize(
    ("resident", "end", "size", "failing"),
    [
        ([10**9] * 8, {}, 318_100, None),
        ([10**9] * 8, {"memories": 99}, 318_100, "every client has a memory"),
        ([10**9] * 8, {"difference": 0.01}, 318_100, "mean of all clients'"),
        ([10**9] * 8, {"peak": 3 * 10**9}, 318_100, "at the peak"),
        ([10**9] * 7 + [12 * 10**8], {}, 318_100, "last quarter"),
        ([10**9] * 8, {}, 400_000, "on disk"),
        ([10**9] * 8, {"resume": 9.0}, 318_100, "kill -9"),
    ],
)
def test_each_promise_can_be_broken(resident: list[int], end: dict[str, float], size: int, failing: str | None):
    message = {"memories": 100, "difference": 1e-6, "peak": 10**9, "resume": 0.5} | end
    checks = many_memories._checks(
        Population(100, 10, 8, 4), diary(resident), diary([10**9], **message), 100 * size, "full"
    )
    assert [failing in check.claim if failing else False for check in checks if not check.passed] == [True] * bool(
        failing
    )


def test_a_disk_that_is_too_small_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(many_memories, "FULL", Population(10**9, 500, 400, 12))
    with pytest.raises(InputError, match=r"needs \d+ GB in .* set TMPDIR"):
        many_memories.measure("full")


@pytest.mark.long
def test_a_terminated_measurement_leaves_nothing_behind(tmp_path: Path):
    code = (
        "from parley_benchmarks import many_memories as m; m.SMOKE = m.Population(9000, 10, 8, 4); m.measure('smoke')"
    )
    with subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(tmp_path)}) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.rglob("records")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        children = psutil.Process(process.pid).children()
        assert children
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())
    assert not any(child.is_running() for child in children)


def test_steps_side_by_side(monkeypatch: pytest.MonkeyPatch):
    """The MLP's half, as small as it gets: all variants run, and FedALS sends to the byte what it claims."""
    monkeypatch.setattr(step_cost, "ARRANGEMENTS", ARRANGEMENTS[:1])
    (result,) = bench(["fedals-step"], "smoke", cores=1)
    assert [standing.name.removeprefix("mlp ") for standing in result.standings] == list(variants(4))
    assert all(standing.median > 0 and standing.cpu >= 0 for standing in result.standings)
    *ratios, sent = result.checks
    assert [check.passed for check in ratios] == [None] * 3
    assert sent.passed
    assert "11." in sent.claim  # (9 * 1,010 + 79,510) / (10 * 79,510) and headers
    json.dumps(result.as_json(), allow_nan=False)


def test_methods_and_crowds_in_turn():
    methods, crowds = bench(["method-cost", "client-cost"], "smoke", cores=1)
    assert [standing.name for standing in methods.standings] == ["fedavg", *method_cost.BOUNDS]
    assert [check.bound for check in methods.checks] == list(method_cost.BOUNDS.values())
    assert len(crowds.standings) == 3
    assert len(crowds.checks) == 1
    for result in (methods, crowds):
        assert all(standing.median > 0 for standing in result.standings)
        assert {check.passed for check in result.checks} == {None}
        json.dumps(result.as_json(), allow_nan=False)


@pytest.mark.long
def test_boosting_and_whole_commands_in_turn():
    boosting, commands = bench(["boost-cost", "start-up"], "smoke", cores=1)
    assert len(boosting.standings) == len(boost_cost.BINS) * (1 + len(boost_cost.CLIENTS))
    assert [standing.name for standing in commands.standings] == [start_cost.YARDSTICK, *start_cost.BOUNDS]
    for result in (boosting, commands):
        assert all(standing.median > 0 for standing in result.standings)
        assert {check.passed for check in result.checks} == {None}
        json.dumps(result.as_json(), allow_nan=False)


def test_a_round_is_judged_beside_one_of_the_same_turn():
    assert method_cost.at_most("", [1.0, 4.0, 9.0], [1.0, 2.0, 3.0], 2.0).passed
    assert not method_cost.at_most("", [1.0, 5.0, 9.0], [1.0, 2.0, 3.0], 2.0).passed


@pytest.mark.slow
def test_steps_in_processes():
    assert measure("smoke", 1).passed


def test_ratios_are_paired_by_chunk():
    lanes = {"fedals": Lane(None, [1.0, 4.0, 2.2]), "fedavg": Lane(None, [1.0, 4.0, 2.0])}  # type: ignore[arg-type]
    check = step_cost._ratio(ARRANGEMENTS[0], lanes, "fedals", "fedavg", "full")
    assert (check.value, check.low, check.high) == pytest.approx((1.0, 1.0, 1.1))
    assert check.passed
    slow = lanes | {"fedals": replace(lanes["fedals"], chunks=[1.1, 4.3, 2.2])}
    assert step_cost._ratio(ARRANGEMENTS[0], slow, "fedals", "fedavg", "full").passed is False
    assert step_cost._ratio(ARRANGEMENTS[0], slow, "fedals", "fedavg", "smoke").passed is None


@pytest.mark.parametrize(
    ("seconds", "share", "slower"),
    [
        ([3.0, 6.0, 3.3, 5.0, 2.7], 0.982, 1.1),
        ([3.0, 4.0, 3.3, 5.0, 2.7], 0.655, 1.1),
        ([3.0, 8.0, 4.0, 5.0, 2.5], 1.0, 1.333),
    ],
)
def test_the_gain_of_a_second_worker_is_judged_by_that_of_a_second_process(seconds, share: float, slower: float):
    """Chunks of other speed change nothing, because ratios are taken within a chunk."""
    laps = [
        Lap(entrant, seconds=[value, 9 * value, 2 * value])
        for entrant, value in zip(ray_gain.entrants(), seconds, strict=True)
    ]
    gain, time_ = ray_gain.promises(laps, "full")
    assert (gain.value, time_.value) == pytest.approx((share, slower), abs=1e-3)
    assert (gain.low, gain.high) == pytest.approx((share, share), abs=1e-3)
    assert (gain.passed, time_.passed) == (share >= 0.9, slower <= 1.2)
    assert [claim.passed for claim in ray_gain.promises(laps, "smoke")] == [None, None]


@pytest.mark.slow
def test_a_second_worker_is_raced_beside_a_second_process():
    (result,) = bench(["ray-gain"], "smoke")
    assert [standing.name for standing in result.standings][1:3] == ["Ray, 1 worker", "Ray, 2 workers"]
    assert all(standing.median > 0 for standing in result.standings)
    with pytest.raises(InputError, match="needs 2 cores, not 1"):
        bench(["ray-gain"], cores=1)


@pytest.mark.long
def test_searches_are_raced_and_find_the_same():
    (result,) = bench(["tune-gain"], "smoke")
    assert [standing.name for standing in result.standings] == ["one worker", "two workers", "two commands"]
    assert all(standing.median > 0 and standing.cpu > 0 for standing in result.standings)
    share, same = result.checks
    assert share.passed is None
    assert same.passed
    with pytest.raises(InputError, match="needs 2 cores, not 1"):
        bench(["tune-gain"], cores=1)


@pytest.mark.parametrize(
    ("workers", "other", "passed"),
    [
        ([10.0, 11.0, 30.0], 0.5, [True, True]),
        ([12.0, 12.0, 12.0], 0.5, [False, True]),
        ([10.0] * 3, 0.6, [True, False]),
    ],
)
def test_the_gain_of_a_second_worker_is_judged_turn_by_turn(workers: list[float], other: float, passed: list[bool]):
    seconds = {"one worker": [20.0] * 3, "two workers": workers, "two commands": [10.0] * 3}
    found = {name: {0.1: 0.5, 0.2: 0.7} for name in seconds} | {"two commands": {0.1: other, 0.2: 0.7}}
    assert [check.passed for check in tune_gain.promises(seconds, found, "full")] == passed


def test_names():
    assert {
        "BOOST-COST",
        "CHANNEL-COST",
        "CLIENT-COST",
        "FEDALS-STEP",
        "FLOWER-ROUND",
        "METHOD-COST",
        "NTK-ROUND",
        "RAY-GAIN",
        "SCAFFOLD-100K",
        "START-UP",
        "TUNE-GAIN",
    } == set(PROBES)
    assert set(ON_REQUEST) == {"FLOWER-ROUND", "SCAFFOLD-100K"}
    assert ALPHA == 10
    with pytest.raises(InputError, match="did you mean 'FEDALS-STEP'"):
        bench(["fedals-stp"])
    with pytest.raises(InputError, match="1 to"):
        bench(["fedals-step"], "smoke", cores=10_000)

"""A node whose disk is really full, with real processes: nothing is lost, the log says so, and it is welcomed back.

Two ways to fill it: the node's folder lies on a file system of its own of a few megabytes, which takes the right to
mount one (tests that run as root), and a limit of the operating system's on what the node's processes may write, which
anybody may set.
"""

from __future__ import annotations

import re
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from parley.deploy.demo import HOSPITALS

from .processes import Bench, federation, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SLOW = {"name": "scaffold", "lr": 0.01, "steps": 1500}
"""Rounds of some seconds, in which there is time to fill a disk."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    place = tmp_path_factory.mktemp("federation")
    folder = place / "south"
    folder.mkdir(mode=0o700)
    mounting = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs", str(folder)]
    with suppress(OSError):  # there is no such program
        subprocess.run(mounting, capture_output=True, check=False)
    try:
        with federation(place, "server", *HOSPITALS) as made:
            yield made
    finally:
        if folder.is_mount():
            subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def full_file_system(bench: Bench) -> Iterator[str]:
    folder = bench.nodes["south"].path
    if not folder.is_mount():
        pytest.skip("this user may not mount a small file system to fill it")
    filling = folder / "filling"
    try:
        with filling.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        yield "No space left on device"
    finally:
        filling.unlink()


@contextmanager
def nothing_may_grow(bench: Bench) -> Iterator[str]:
    try:
        _limit(bench, 0)
        yield "File too large"
    finally:
        _limit(bench, resource.RLIM_INFINITY)


def _limit(bench: Bench, size: int) -> None:
    """Let no file grow beyond a size, of those that the node's processes write, and those which they start."""
    client = psutil.Process(bench.processes["south"].pid)
    for process in (client, *client.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            _, hard = process.rlimit(resource.RLIMIT_FSIZE)
            process.rlimit(resource.RLIMIT_FSIZE, (min(size, hard) if hard >= 0 <= size else size, hard))


WAYS = [full_file_system, nothing_may_grow]
REFUSED = r"(cannot answer: its log cannot be written|refused; its owner finds why)"


@pytest.mark.parametrize("filled", WAYS)
def test_a_run_that_needs_the_node_stops_and_goes_on_with_the_bits_of_an_undisturbed_one(bench: Bench, filled):
    seed = WAYS.index(filled)
    table = bench.table("scaffold", 3, seed=seed, algorithm=SLOW, faults={"quorum": 1.0})
    one = bench.submit(table)
    bench.reaches(one, "round 1: asked 3, answered 3")
    with filled(bench) as why:
        done = bench.ended(one)
    assert done.status == "stopped", bench.said(one)
    assert "only 2 of 3 clients answered" in done.reason
    assert re.search(rf"client 'south' {REFUSED}", done.reason), why
    assert str(bench.place) not in done.reason
    assert len(done.reason.splitlines()) == 1
    before = len(list(bench.nodes["south"].logged()))  # whole, though it could not go on
    bench.same_as_inline(bench.ended(bench.submit(table)), table)
    assert len(list(bench.nodes["south"].logged())) > before


@pytest.mark.parametrize("filled", WAYS)
def test_a_run_goes_on_without_the_node_and_welcomes_it_back(bench: Bench, filled):
    seed = 10 + WAYS.index(filled)
    table = bench.table("scaffold", 6, seed=seed, algorithm=SLOW, evaluate={"every": 6, "clients": "none"})
    with filled(bench) as why:
        one = bench.submit(table)
        until(lambda: re.search(rf"south {REFUSED}", bench.said(one)), why)
    bench.reaches(one, "south enrolled with 48 samples.")
    bench.reaches(one, "round 1: asked 3, answered 3")
    with filled(bench) as why:
        missing = rf"answered 2; missing: south {REFUSED}"
        until(lambda: re.search(missing, bench.said(one)), f"{missing}: {why}")
    bench.reaches(one, "round 6: asked 3, answered 3")
    until(lambda: not bench.submissions[one.id].active, "the end")
    assert bench.submissions[one.id].status == "finished"
    assert bench.processes["south"].poll() is None

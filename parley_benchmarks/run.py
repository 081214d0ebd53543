"""The whole benchmark: choose contestants, see to their environments, race, and judge."""

from collections.abc import Callable, Iterable
from pathlib import Path

from parley import InputError
from parley.core.errors import nearest
from parley_benchmarks.environments import install, installed
from parley_benchmarks.harness import race
from parley_benchmarks.probes import ON_REQUEST, PROBES
from parley_benchmarks.result import BenchResult, summarise
from parley_benchmarks.roster import chosen, own_python, roster
from parley_benchmarks.work import initial_weights
from parley_benchmarks.workloads import WORKLOADS, BenchScale, workload


def default_workloads() -> list[str]:
    """All workloads and probes but those that fill a disk."""
    return [*WORKLOADS, *(name for name in PROBES if name not in ON_REQUEST)]


def bench(
    names: Iterable[str] = (),
    scale: BenchScale = "full",
    *,
    cores: int | None = None,
    contestants: Iterable[str] = (),
    install_peers: bool = True,
    cache: Path | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> list[BenchResult]:
    """Run workloads and probes, and return one result each; without `names`, all but those that fill a disk.

    `contestants` narrows a race to those names or groups. At full scale missing peers are installed first; at smoke
    scale, or with `install_peers=False`, peers that are not installed are left out and claims about them not judged.
    """
    wanted = [name.upper() for name in names] or default_workloads()
    for name in wanted:
        if name not in WORKLOADS and name not in PROBES:
            raise InputError(f"unknown workload '{name}': {nearest(name, [*WORKLOADS, *PROBES])}")
    return [
        PROBES[name](scale, cores, seed, say)
        if name in PROBES
        else _bench_one(name, scale, cores, list(contestants), install_peers and scale == "full", cache, seed, say)
        for name in wanted
    ]


def _bench_one(
    name: str,
    scale: BenchScale,
    cores: int | None,
    contestants: list[str],
    install_peers: bool,
    cache: Path | None,
    seed: int,
    say: Callable[[str], None],
) -> BenchResult:
    work = workload(name, scale, cores)
    entries = chosen(roster(work), contestants) if contestants else roster(work)
    pythons = {"": own_python()}
    for peer in sorted({entry.peer for entry in entries} - {""}):
        python = install(peer, cache, say) if install_peers else installed(peer, cache)
        if python is not None:
            pythons[peer] = python
        else:
            say(f"{work.name}: leaving out {peer}, which is not installed")
    entries = [entry for entry in entries if entry.peer in pythons]
    if not entries:
        raise InputError(f"no contestant of {work.name} is left to run; install the peers or name others.")
    return summarise(work, scale, race(work, entries, pythons, say, seed), initial_weights(work, seed))

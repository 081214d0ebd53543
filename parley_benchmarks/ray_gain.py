"""RAY-GAIN: what a second Ray worker brings, beside what a second process brings that has nothing to do with the first.

The client is that of CIFAR10-CNN, 20 a round, on random pictures. In one race: Ray with one worker and with two, one
and two bare training loops that share a round's clients and nothing else, and the pool with two workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from parley import InputError
from parley_benchmarks.harness import Lap, race
from parley_benchmarks.result import BenchResult, Claim, summarise
from parley_benchmarks.roster import Entrant, own_python
from parley_benchmarks.workloads import BenchScale, Workload, available_cpus, workload

NAME = "RAY-GAIN"
ABOUT = "CIFAR10-CNN's client, 20 a round: Ray with one and two workers, one and two bare loops, the pool"
SHARE = 0.9
"""Of the gain that a second independent process shows, a second Ray worker must show at least this."""
SLOWER = 1.2
"""Ray may take at most this many times the pool's time."""
CORES = 2


def measure(
    scale: BenchScale = "full", cores: int | None = None, seed: int = 0, say: Callable[[str], None] = lambda _: None
) -> BenchResult:
    """Race all five and judge both promises, chunk by chunk."""
    if cores not in (None, CORES) or len(available_cpus()) < CORES:
        raise InputError(f"{NAME} compares one worker with {CORES}, so it needs {CORES} cores, not {cores or 1}.")
    work = raced(scale)
    laps = race(work, entrants(), {"": own_python()}, say, seed)
    result = summarise(work, scale, laps, {})
    return replace(result, checks=[*promises(laps, scale), *result.checks])


def raced(scale: BenchScale) -> Workload:
    full = workload("CIFAR10-CNN", scale)
    changed = replace(full, name=NAME, about=ABOUT, data="", targets=(), rounds=1, cores=CORES)
    return replace(changed, clients=200, cohort=20, repeats=5) if scale == "full" else changed


def entrants() -> list[Entrant]:
    """No weights are compared: those of Ray and the pool are the same to the bit, and bare loops have none."""
    listed = [Entrant("pool, 2 workers", "pool", "parley_", processes=2, comparable=False)]
    for count, word in ((1, "worker"), (2, "workers")):
        listed.append(Entrant(f"Ray, {count} {word}", "ray", "parley_", count, variant="ray", comparable=False))
    listed += [Entrant(f"bare x{count}", "bare", "bare", count, comparable=False) for count in (1, 2)]
    return listed


def promises(laps: Sequence[Lap], scale: BenchScale) -> list[Claim]:
    """Ratios are taken within a chunk, whose parts are neighbours in time; the median over the chunks is judged."""
    pool, single, two, alone, both = (lap.seconds for lap in laps)
    gains = [a / b for a, b in zip(single, two, strict=True)]
    bare = [a / b for a, b in zip(alone, both, strict=True)]
    shares = [ours / theirs for ours, theirs in zip(gains, bare, strict=True)]
    slower = [ours / theirs for ours, theirs in zip(two, pool, strict=True)]
    judged = scale == "full"
    share, times = median(shares), median(slower)
    about = f"a second Ray worker brings at least {SHARE:g} of what a second process brings"
    sentence = f"{about} ({median(gains):.2f}x and {median(bare):.2f}x)"
    return [
        Claim(sentence, share, SHARE, share >= SHARE if judged else None, min(shares), max(shares)),
        Claim(
            f"Ray takes at most {SLOWER:g} times the pool's time",
            times,
            SLOWER,
            times <= SLOWER if judged else None,
            min(slower),
            max(slower),
        ),
    ]

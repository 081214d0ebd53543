"""METHOD-COST: what a round of other methods costs beside one of FedAvg, and a client beside more of them.

All take turns in one process, round by round, each in an open runtime of its own. Processor time counts, so that
neighbours on the machine do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from parley import (
    MOON,
    Algorithm,
    Ditto,
    Evaluation,
    Faults,
    FedAvg,
    FedDyn,
    Federation,
    FedProx,
    FedRep,
    Key,
    Run,
    Sampling,
    Scaffold,
    make_task,
)
from parley.engine.evaluation import Evaluator
from parley.engine.loop import Loop, long_lived
from parley.engine.sampling import Sampler
from parley.runtimes import Job, open_runtime
from parley.store.memories import Memories
from parley_benchmarks.contestants.models import build
from parley_benchmarks.harness import peak_resident
from parley_benchmarks.result import GIGA, BenchResult, Claim, Standing, machine
from parley_benchmarks.step_cost import federation
from parley_benchmarks.workloads import BenchScale

NAME, CROWDS = "METHOD-COST", "CLIENT-COST"
ABOUT = "a round of six methods beside one of FedAvg: MLP 784-100-10, 20 clients of 200 samples, batch 20, one epoch"
CROWDS_ABOUT = "a client's share of a round of 100, 1,000 and 10,000 clients: 20 samples of 64 features, linear"
BOUNDS = {"fedprox": 1.15, "scaffold": 1.15, "feddyn": 1.15, "fedrep": 2.0, "ditto": 2.1, "moon": 5.0}
"""A round of each may take at most so many times one of FedAvg."""
FLAT = 1.15
"""A client among most may take at most so many times a client among fewest."""


def methods(batch: int) -> dict[str, Algorithm]:
    same: dict[str, Any] = {"lr": 0.05, "epochs": 1, "batch": batch}
    return {
        "fedavg": FedAvg(**same),
        "fedprox": FedProx(**same),
        "scaffold": Scaffold(**same),
        "feddyn": FedDyn(**same),
        "fedrep": FedRep(**same),
        "ditto": Ditto(**same),
        "moon": MOON(**same),
    }


def measure(
    scale: BenchScale = "full", cores: int | None = None, seed: int = 0, say: Callable[[str], None] = lambda _: None
) -> BenchResult:
    """Every method's round over FedAvg's, on one core."""
    clients, batch, rounds = (20, 20, 15) if scale == "full" else (2, 4, 2)
    data = federation((784,), clients, 10 * batch, seed)
    loops = {name: _loop(method, data, "mlp", clients, seed) for name, method in methods(batch).items()}
    spent = _in_turn(loops, rounds, lambda turn: say(f"{NAME}: {turn}/{rounds}"))
    checks = [
        at_most(f"a round of {name} takes at most {bound:g} times one of fedavg", spent[name], spent["fedavg"], bound)
        for name, bound in BOUNDS.items()
    ]
    return result_of(NAME, ABOUT, scale, spent, checks)


def measure_crowds(
    scale: BenchScale = "full", cores: int | None = None, seed: int = 0, say: Callable[[str], None] = lambda _: None
) -> BenchResult:
    """A client's share of rounds of different sizes, on one core."""
    sizes, rounds = ((100, 1000, 10_000), 9) if scale == "full" else ((2, 4, 8), 2)
    data = federation((64,), sizes[-1], 20, seed)
    method = FedAvg(lr=0.1, epochs=1, batch=10)
    loops = {f"{size:,} clients": _loop(method, data, "linear", size, seed) for size in sizes}
    whole = _in_turn(loops, rounds, lambda turn: say(f"{CROWDS}: {turn}/{rounds}"))
    spent = {name: [value / size for value in whole[name]] for name, size in zip(loops, sizes, strict=True)}
    few, *_, many = spent
    claim = f"a client among {many} takes at most {FLAT:g} times one among {few}"
    return result_of(CROWDS, CROWDS_ABOUT, scale, spent, [at_most(claim, spent[many], spent[few], FLAT)])


def _loop(method: Algorithm, data: Federation, model: str, cohort: int, seed: int) -> Loop:
    key = Key(seed)
    task = make_task(data, build(model, tuple(data.info.shape), 10, dropout=False), seed)
    job = Job(method, task, data)
    runtime, _ = open_runtime("stacked", job, 1)
    loop = Loop(
        job,
        Run(method, task, data, method.init(task, key)),
        runtime,
        Sampler(data, Sampling(size=cohort), Faults(), key),
        Evaluator(job, Evaluation(central=False), key),
        Faults(),
        key,
        10**6,
        Memories(),
    )
    loop.step(1)
    return loop


def _in_turn(loops: dict[str, Loop], rounds: int, say: Callable[[int], None]) -> dict[str, list[float]]:
    """Processor seconds of each one's rounds. Who begins rotates, so that nobody inherits the same one's caches."""
    spent: dict[str, list[float]] = {name: [] for name in loops}
    names = list(loops)
    try:
        with long_lived():
            for turn in range(rounds):
                for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
                    began = time.process_time()
                    loops[name].step(turn + 2)
                    spent[name].append(time.process_time() - began)
                say(turn + 1)
    finally:
        for loop in reversed(list(loops.values())):
            loop.runtime.close()
    return spent


def at_most(claim: str, ours: list[float], theirs: list[float], bound: float) -> Claim:
    """That the median of ours / theirs, each pair of the same turn, is at most `bound`."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Claim(claim, median(ratios), bound, median(ratios) <= bound, min(ratios), max(ratios))


def result_of(
    name: str,
    about: str,
    scale: BenchScale,
    spent: dict[str, list[float]],
    checks: list[Claim],
    cpu: dict[str, list[float]] | None = None,
) -> BenchResult:
    """A standing for each of those that took turns; at scale smoke nothing is judged. `cpu`: where wall time was spent,
    the processor time of it."""
    if scale != "full":
        checks = [Claim(check.claim, check.value, check.bound, None, check.low, check.high) for check in checks]
    standings = [
        Standing(
            name=who,
            group=who,
            versions={"torch": torch.__version__},
            setup_seconds=0.0,
            median=median(values),
            fastest=min(values),
            slowest=max(values),
            per_chunk=values,
            cpu=median((cpu or spent)[who]),
            peak_gb=peak_resident() / GIGA,
            early_difference=None,
            final_difference=None,
        )
        for who, values in spent.items()
    ]
    return BenchResult(name, about, scale, 1, 1, machine(), standings, checks)

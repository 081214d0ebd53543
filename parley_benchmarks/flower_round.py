"""FLOWER-ROUND: what Parley adds to a round over Flower, beside an application of Flower's own at equal payload.

Two federations stand side by side on this machine (`flower_federations`): the same samples at three nodes, the same
network, the same steps of full-batch gradient descent, so their weights must agree. They train in turn, a few rounds
each, and who begins alternates; the other one waits meanwhile. A round counts from the end of the one before to its
own end, with all that comes between: in Parley's case the front, consent, the audit log and a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil
import torch
from torch import Tensor

from parley import make_task
from parley.deploy.extra import check_flower
from parley.models import mlp
from parley_benchmarks.against import ratio_interval
from parley_benchmarks.flower_federations import PIXELS, Chunk, Parley, Plain, Size, both
from parley_benchmarks.harness import peak_resident, terminable
from parley_benchmarks.result import GIGA, BenchResult, Claim, Standing, machine, relative_distance
from parley_benchmarks.step_cost import federation
from parley_benchmarks.workloads import BenchScale, available_cpus

NAME = "FLOWER-ROUND"
ABOUT = "FedAvg among three nodes over TLS, round for round beside a Flower app that imports torch and no Parley"
SIZES = (Size(hidden=100), Size(hidden=1500))
BOUND = 1.1
"""A round of Parley's takes at most so many times that of the plain application."""
TOLERANCE = 1e-4
"""Relative distance of the two sides' weights: ReLUs make rounding errors visible."""


def measure(
    scale: BenchScale = "full",
    cores: int | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
    sizes: Sequence[Size] = SIZES,
    chunks: int = 3,
    rounds: int = 12,
) -> BenchResult:
    """Let both federations train in turn; `chunks` of `rounds` each, of which the first is not timed."""
    check_flower()
    if scale == "smoke":
        sizes, chunks, rounds = sizes[:1], 1, 3
    standings: list[Standing] = []
    checks: list[Claim] = []
    with terminable(), TemporaryDirectory(prefix="parley-bench-") as name:
        say(f"{NAME}: starting two servers and six nodes")
        began = time.perf_counter()
        with both(Path(name), seed) as (ours, plain, alive):
            setup = time.perf_counter() - began
            for size in sizes:
                pairs = _race(size, ours, plain, alive, chunks, rounds, say)
                apart = _apart(size, pairs)
                standings += _standings(size, pairs, setup, apart)
                checks += _claims(size, pairs, apart, scale)
    return BenchResult(NAME, ABOUT, scale, cores or len(available_cpus()), rounds - 1, machine(), standings, checks)


Turn = tuple[Chunk, float]
"""What a federation did, and processor seconds of the whole machine a round meanwhile."""


def _race(
    size: Size,
    ours: Parley,
    plain: Plain,
    alive: Callable[[], None],
    chunks: int,
    rounds: int,
    say: Callable[[str], None],
) -> list[dict[str, Turn]]:
    work: dict[str, Callable[[], Chunk]] = {
        ours.name: lambda: ours.train(size, rounds, alive),
        plain.name: lambda: plain.train(size, rounds, _initial(size), alive),
    }
    pairs = []
    for number in range(chunks):
        turns = {}
        for name in list(work)[:: -1 if number % 2 else 1]:
            before = _busy()
            turns[name] = chunk, _ = work[name](), (_busy() - before) / rounds
            typical = median(chunk.seconds)
            say(f"{NAME}: {size.megabytes:.1f} MB, chunk {number + 1}/{chunks}, {name} {typical:.2f} s a round")
        pairs.append(turns)
    return pairs


def _initial(size: Size) -> dict[str, Tensor]:
    """The weights that the study of seed 0 begins with."""
    return make_task(federation((PIXELS,), 1, 1, 0), mlp(size.hidden), 0).initial()


def _busy() -> float:
    """Processor seconds of the whole machine since its start: processes that Flower starts for a message are gone
    before they could be asked."""
    times = psutil.cpu_times()
    return float(times.user + times.system)


def _apart(size: Size, pairs: Sequence[Mapping[str, Turn]]) -> float:
    ours, plain = (pairs[-1][name][0].weights for name in (Parley.name, Plain.name))
    apart = relative_distance(ours, plain, _initial(size))
    assert apart is not None
    return apart


def _seconds(pairs: Sequence[Mapping[str, Turn]], name: str) -> list[float]:
    return [seconds for turns in pairs for seconds in turns[name][0].seconds]


def _standings(size: Size, pairs: Sequence[Mapping[str, Turn]], setup: float, apart: float) -> list[Standing]:
    return [
        Standing(
            name=f"{name} {size.megabytes:.1f} MB",
            group=name,
            versions={"torch": torch.__version__, "flwr": version("flwr")},
            setup_seconds=setup,
            median=median(_seconds(pairs, name)),
            fastest=min(_seconds(pairs, name)),
            slowest=max(_seconds(pairs, name)),
            per_chunk=[median(turns[name][0].seconds) for turns in pairs],
            cpu=median(turns[name][1] for turns in pairs),
            peak_gb=peak_resident() / GIGA,
            early_difference=None,
            final_difference=apart,
        )
        for name in (Parley.name, Plain.name)
    ]


def _claims(size: Size, pairs: Sequence[Mapping[str, Turn]], apart: float, scale: BenchScale) -> list[Claim]:
    value, low, high = ratio_interval(_seconds(pairs, Parley.name), _seconds(pairs, Plain.name))
    what = f"{size.megabytes:.1f} MB"
    judged = value <= BOUND if scale == "full" else None
    return [
        Claim(f"{what}: a round takes at most {BOUND:g} times that of a plain app", value, BOUND, judged, low, high),
        Claim(f"{what}: both end with the same weights", apart, TOLERANCE, apart <= TOLERANCE),
    ]

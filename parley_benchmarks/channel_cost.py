"""CHANNEL-COST: what compressing 1,626,442 weights costs beside the training whose update they are.

One client of the CIFAR-10 network takes a round of local steps; then its reply goes through each channel, both halves,
in turn with more rounds. Processor time counts, so that neighbours on the machine do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from parley import (
    Context,
    FedAvg,
    Form,
    Key,
    Memory,
    ParleyError,
    Reply,
    ef21,
    fedcom,
    fedpaq,
    make_task,
    projection,
    qsgd,
    random_k,
    sign,
    top_k,
)
from parley.channels.base import Chain, Channels
from parley.runtimes.inline import Inline
from parley.runtimes.protocol import Call, Job, Stamp
from parley_benchmarks.contestants.models import build
from parley_benchmarks.harness import peak_resident
from parley_benchmarks.result import GIGA, BenchResult, Claim, Standing, machine
from parley_benchmarks.step_cost import federation
from parley_benchmarks.workloads import BenchScale

NAME = "CHANNEL-COST"
ABOUT = (
    "a client's round of the CIFAR-10 CNN (5 steps of 10 samples) beside compressing its update of 1,626,442 weights"
)
BOUND = 0.1
"""The client's half of a judged channel takes at most this share of the client's round."""
SHAPE = (3, 32, 32)
CHANNELS: dict[str, Chain] = {
    "top-k(0.01)": Chain((top_k(0.01),)),
    "qsgd(4)": Chain((qsgd(4),)),
    "ef21, top-k(0.01)": ef21() | top_k(0.01),
    "qsgd(8)": Chain((qsgd(8),)),
    "fedpaq(4)": Chain((fedpaq(4),)),
    "fedcom": Chain((fedcom(),)),
    "sign": Chain((sign(),)),
    "random-k(0.01)": Chain((random_k(0.01),)),
    "projection(0.01)": Chain((projection(0.01),)),
}
JUDGED = ("top-k(0.01)", "qsgd(4)")


def measure(
    scale: BenchScale = "full", cores: int | None = None, seed: int = 0, say: Callable[[str], None] = lambda _: None
) -> BenchResult:
    """Time a client's round and both halves of each channel, on one core."""
    times, many = 9 if scale == "full" else 2, 10 if scale == "full" else 2
    algorithm, data = FedAvg(lr=0.01, steps=5, batch=many), federation(SHAPE, 1, 5 * many, seed)
    task = make_task(data, build("cnn", SHAPE, 10, dropout=False), seed)
    context = Context.alone(Key(seed), data.ids[0])
    message = algorithm.broadcast(task, algorithm.init(task, Key(seed)), 1)
    call, stamp = Call(data.ids[0], message, Memory(), context), Stamp("", 1, 0, 0)
    (client,) = algorithm.exchanges()
    form = client.form(task, message)
    assert form is not None
    runtime = Inline(Job(algorithm, task, data))
    try:
        (reply,) = runtime.run([call], stamp)
        if not isinstance(reply, Reply):
            raise ParleyError(f"{NAME}: the client {reply.reason}")
        spent: dict[str, list[float]] = {"client's round": []}
        for turn in range(times):
            spent["client's round"].append(_seconds(lambda: runtime.run([call], stamp))[0])
            for name, chain in CHANNELS.items():
                sent, received = _halves(Channels.of(algorithm, chain), reply, form, context)
                spent.setdefault(f"{name} send", []).append(sent)
                spent.setdefault(f"{name} receive", []).append(received)
            say(f"{NAME}: {turn + 1}/{times}")
    finally:
        runtime.close()
    usual = median(spent["client's round"])
    checks = [_claim(name, median(spent[f"{name} send"]) / usual, scale) for name in JUDGED]
    standings = [_standing(name, seconds) for name, seconds in spent.items()]
    return BenchResult(NAME, ABOUT, scale, 1, 1, machine(), standings, checks)


def _halves(channels: Channels, reply: Reply, form: Form, context: Context) -> tuple[float, float]:
    """Seconds of the client's half, with a memory of its own from a round before, and of the server's."""
    before = channels.send(reply, Memory(), context)
    memory = before.memory or Memory()
    mirror = channels.receive(before.message, form, context, None).mirror
    sending, sent = _seconds(lambda: channels.send(reply, memory, context))
    receiving, _ = _seconds(lambda: channels.receive(sent.message, form, context, mirror))
    return sending, receiving


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.thread_time()
    result = work()
    return time.thread_time() - began, result


def _claim(name: str, share: float, scale: BenchScale) -> Claim:
    judged = share <= BOUND if scale == "full" else None
    return Claim(f"{name}: the client's half takes at most {BOUND:.0%} of its round", share, BOUND, judged)


def _standing(name: str, seconds: list[float]) -> Standing:
    return Standing(
        name=name,
        group=name,
        versions={"torch": torch.__version__},
        setup_seconds=0.0,
        median=median(seconds),
        fastest=min(seconds),
        slowest=max(seconds),
        per_chunk=seconds,
        cpu=median(seconds),
        peak_gb=peak_resident() / GIGA,
        early_difference=None,
        final_difference=None,
    )

"""NTK-ROUND: a round of NTK-FL at the size of paper 003, beside the recursion that it replaces and the dense Jacobian.

20 clients of 200 samples, an MLP 784-100-10 (79,510 weights), cross-entropy, times up to 2,000. Processor time counts,
on one core, so that neighbours on the machine do not. The pictures are made up, with the spectrum of real ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap
from torch.nn import functional as F

from parley import ClientData, Cohort, Context, DataInfo, Key, Memory, NtkFL, Replies, State, Task, Tree
from parley.algorithms.ntk.jacobian import jacobian
from parley.core.processes import end_with
from parley.models import mlp
from parley.training.losses import cross_entropy
from parley_benchmarks.harness import peak_resident
from parley_benchmarks.result import GIGA, BenchResult, Claim, Standing, machine
from parley_benchmarks.workloads import BenchScale

NAME = "NTK-ROUND"
ABOUT = (
    "a round of NTK-FL at paper 003's size beside its recursion of 2,000 steps, its kernel beside the dense Jacobian"
)
TIMES = tuple(range(100, 2001, 100))
METHOD = NtkFL(times=TIMES, select="clients")
HALF, TIMES_FASTER, GIGABYTES, SAME = 0.5, 100.0, 1.5, 1e-5


def measure(
    scale: BenchScale = "full", cores: int | None = None, seed: int = 0, say: Callable[[str], None] = lambda _: None
) -> BenchResult:
    """Time a whole round, the recursion alone, and kernel and J'R both ways, on one core."""
    full = scale == "full"
    clients, each, dense = (20, 200, 1000) if full else (3, 20, 30)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # In a process of its own, whose peak no other workload has raised.
        with ProcessPoolExecutor(1, get_context("spawn"), end_with, (os.getpid(),)) as alone:
            whole, peak = alone.submit(_round_and_peak, clients, each, seed).result()
        say(f"{NAME}: a round in {whole:.1f} s")
        task, data = problem(clients, each, seed)
        x, y = torch.cat([client.x for client in data]), torch.cat([client.y for client in data])
        plain = _recursion(task, METHOD, x, y, TIMES[-1] if full else 50)
        say(f"{NAME}: the recursion in {plain:.1f} s")
        x, y = x[:dense], y[:dense]
        ours, (h, moved) = _seconds(lambda: _factored(task, x, y))
        theirs, (expected, descended) = _seconds(lambda: _dense(task, x, y))
    finally:
        torch.set_num_threads(before)
    gap = max(_apart(h, expected), max(_apart(moved[name], value) for name, value in descended.items()))
    checks = [
        _claim("the whole round takes at most half of the recursion's time", whole / plain, HALF, full),
        _claim("the round stays within 1.5 GB", peak, GIGABYTES, full),
        _claim(f"kernel and J'R at {dense} samples: dense over factored time", theirs / ours, TIMES_FASTER, full, True),
        _claim("the same kernel and weights as by the dense Jacobian", gap, SAME, True),
    ]
    lanes = {
        "round": whole,
        f"recursion, {TIMES[-1]} steps": plain,
        "kernel and J'R, factored": ours,
        "kernel and J'R, dense": theirs,
    }
    standings = [_standing(name, seconds, peak) for name, seconds in lanes.items()]
    return BenchResult(NAME, ABOUT, scale, 1, 1, machine(), standings, checks)


def _round_and_peak(clients: int, each: int, seed: int) -> tuple[float, float]:
    """Seconds of a round and this process's peak of memory in GB."""
    torch.set_num_threads(1)
    task, data = problem(clients, each, seed)
    whole, _ = _seconds(lambda: one_round(METHOD, task, data))
    return whole, peak_resident() / GIGA


def problem(clients: int, each: int, seed: int) -> tuple[Task, list[ClientData]]:
    """An MLP, and pictures whose pixels share a mean and a few directions, as those of Fashion-MNIST do."""
    random = Key(seed).fold("ntk-round").torch()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = mlp(100).build((784,), 10)
    task = Task(module, cross_entropy, DataInfo("pictures", (784,), 10, "classification"), clients)
    mean = torch.randn(784, generator=random)
    axes = torch.randn(20, 784, generator=random) * (0.7 / torch.arange(1, 21).sqrt()).unsqueeze(1)
    kinds = torch.randn(10, 20, generator=random)
    clients_data = []
    for _ in range(clients):
        y = torch.randint(0, 10, (each,), generator=random)
        x = 0.6 * mean + (kinds[y] + torch.randn(each, 20, generator=random)) @ axes / 3
        x = x + 0.3 * torch.randn(each, 784, generator=random)
        clients_data.append(ClientData(x / x.std(), y))
    return task, clients_data


def one_round(method: NtkFL, task: Task, data: Sequence[ClientData]) -> Tree:
    """The method's own round with these clients, both exchanges."""
    ids = tuple(f"c{k}" for k in range(len(data)))
    cohort = Cohort(ids, (1 / len(ids),) * len(ids), everyone=ids)
    state = method.init(task, Key(0))
    under_way = method.round(task, state, cohort, 1, Key(0))
    question, answers = next(under_way), {each.name: each.answer for each in method.exchanges()}
    while True:
        asked = {**dict(zip(ids, data, strict=True))}
        answer = answers[question.asked]
        messages = {
            i: answer(task, m, Memory(), asked[i], Context.alone(Key(0), i, asked=question.asked)).message
            for i, m in question.messages.items()
        }
        try:
            question = under_way.send(Replies(messages, dict.fromkeys(ids, 1 / len(ids))))
        except StopIteration as end:
            outcome = end.value
            reached: State = outcome if isinstance(outcome, State) else outcome[0]
            return reached["model"]


def _recursion(task: Task, method: NtkFL, x: Tensor, y: Tensor, steps: int) -> float:
    """Seconds of f <- f - eta/N H (softmax f - Y) alone, the kernel being there."""
    h, f = jacobian(task.network, {}, x).kernel(), task.predictor(task.initial())(x).detach()
    hot, rate = F.one_hot(y, 10).to(f.dtype), method.lr / len(x)

    def descend() -> Tensor:
        g, total = f, torch.zeros_like(f)
        for _ in range(steps):
            r = g.softmax(1) - hot
            g, total = g - rate * (h @ r), total + r
        return total

    return _seconds(descend)[0]


def _factored(task: Task, x: Tensor, y: Tensor) -> tuple[Tensor, Tree]:
    jac = jacobian(task.network, {}, x)
    return jac.kernel(), jac.vjp(_residual(task, x, y))


def _dense(task: Task, x: Tensor, y: Tensor) -> tuple[Tensor, Tree]:
    """J written out, H = 1/d_2 sum_j J_j J_j' and J'R."""
    w = task.initial()
    j = vmap(jacrev(lambda p, sample: functional_call(task.network, p, (sample.unsqueeze(0),))[0]), (None, 0))(w, x)
    h, r = torch.zeros(len(x), len(x)), _residual(task, x, y)
    for rows in j.values():
        flat = rows.flatten(1)
        h.addmm_(flat, flat.T, alpha=1 / r.shape[1])
    return h, {name: torch.tensordot(r, rows, 2) for name, rows in j.items()}


def _residual(task: Task, x: Tensor, y: Tensor) -> Tensor:
    f = task.predictor(task.initial())(x).detach()
    return f.softmax(1) - F.one_hot(y, 10)


def _apart(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.thread_time()
    result = work()
    return time.thread_time() - began, result


def _claim(claim: str, value: float, bound: float, judged: bool, least: bool = False) -> Claim:
    return Claim(claim, value, bound, (value >= bound if least else value <= bound) if judged else None)


def _standing(name: str, seconds: float, peak: float) -> Standing:
    return Standing(
        name=name,
        group=name,
        versions={"torch": torch.__version__},
        setup_seconds=0.0,
        median=seconds,
        fastest=seconds,
        slowest=seconds,
        per_chunk=[seconds],
        cpu=seconds,
        peak_gb=peak,
        early_difference=None,
        final_difference=None,
    )

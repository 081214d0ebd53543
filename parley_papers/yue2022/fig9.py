"""Figure 9: how far NTK-FL's weights and gradient descent's are apart after t steps, beside Lemma 2's curve."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.line_panels import LinePanel, line_panels
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, study

COEFFICIENT = 2.0
"""What the paper sets in place of Lemma 2's coefficient."""
_SAMPLES: dict[Scale, int] = {"smoke": 60, "cpu": 1000, "paper": 4000}
_TIMES: dict[Scale, tuple[int, ...]] = {
    "smoke": (1, 5, 20, 60),
    "cpu": (1, 5, 20, 50, 100, 150, 200, 300, 400, 500),
    "paper": (1, *range(100, 2001, 100)),
}


@dataclass(frozen=True, eq=False)
class Gaps:
    """||w_t - descended w_t||_1 by method, and sums of the largest residuals."""

    averaged: Array
    full: Array
    moved: Array
    """How far descent has moved itself, ||w_t - w_0||_1."""
    largest: Array
    """sum_{u=1}^{t-1} gamma_u."""


@study("003/fig9", scales={scale: f"{n} samples, t up to {_TIMES[scale][-1]}" for scale, n in _SAMPLES.items()})
def fig9(scale: Scale, context: StudyContext) -> StudyResult:
    """The gap is zero after one step and grows with t, as Lemma 2's curve does."""
    sets = (
        {"digits": pl.data.digits}
        if scale == "smoke"
        else {"Fashion-MNIST": pl.data.fashion_mnist, "MNIST": pl.data.mnist}
    )
    times = np.array(_TIMES[scale], dtype=np.float64)
    checks: list[Check] = []
    panels, data = [], dict[str, object]()
    for name, load in sets.items():
        gaps = _gaps(load(), _SAMPLES[scale], _TIMES[scale])
        checks += _checks(name, gaps)
        curve = COEFFICIENT * gaps.largest
        panels.append(
            LinePanel(
                f"||difference of the weights||_1, {name}",
                "steps t",
                times[1:],
                {
                    "NTK-FL (9b)": gaps.averaged[1:],
                    "with the full kernel": gaps.full[1:],
                    "Lemma 2's sum, coefficient 2": curve[1:],
                },
                scale="log",
            )
        )
        data[name] = {"averaged": gaps.averaged, "full": gaps.full, "moved": gaps.moved, "curve": curve}
    figure = line_panels("NTK-FL's weights and gradient descent's", panels)
    return context.result(checks, {"gap": figure}, {"t": times, **data})


def _checks(name: str, gaps: Gaps) -> list[Check]:
    rise = np.diff(gaps.averaged)
    return [
        at_most(f"{name}: gap after one step, of what descent moved", float(gaps.averaged[0] / gaps.moved[0]), 1e-5),
        at_least(f"{name}: the gap grows from time to time, least", float(rise.min() / gaps.averaged[-1]), 0.0),
        at_most(
            f"{name}: the gap over Lemma 2's curve, from t = 2",
            float((gaps.averaged / np.maximum(COEFFICIENT * gaps.largest, 1e-30))[1:].max()),
            1.0,
        ),
        at_most(f"{name}: smaller with the full kernel, last t", float(gaps.full[-1] / gaps.averaged[-1]), 1.0),
    ]


def _gaps(data: pl.Dataset, samples: int, times: tuple[int, ...]) -> Gaps:
    """Pooled samples of one round, an MLP of 100 units, mean squares to one-hot labels at a stable step size."""
    chosen = pl.Key(0).fold("003/fig9").numpy().permutation(len(data.x))[:samples]
    x, y = data.x[torch.from_numpy(chosen)].flatten(1).float(), data.y[torch.from_numpy(chosen)]
    x = (x - x.mean()) / x.std()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        module = pl.models.mlp(100).build((x.shape[1],), 10)
    w = {n: p.detach() for n, p in module.named_parameters()}
    jac, f = pl.algorithms.ntk.jacobian.linearised(module, w, x)
    base = pl.NtkFL(loss="mse", dynamics="printed", times=times, tolerance=1e-6)
    walked, moved, largest = _descended(module, w, x, F.one_hot(y, 10).float(), base.lr, times)
    gaps = {}
    for kernel in ("averaged", "full"):
        method = replace(base, kernel=kernel)
        evolution = method.evolution(jac, f, y)
        steps = jac.vjp(evolution.cumulative(times))
        ends = [{n: w[n] - evolution.rate * steps[n][k] for n in w} for k in range(len(times))]
        gaps[kernel] = np.array([_distance(a, b) for a, b in zip(ends, walked, strict=True)])
    return Gaps(gaps["averaged"], gaps["full"], moved, largest)


def _descended(
    module: nn.Module, w: pl.Tree, x: Tensor, y: Tensor, lr: float, times: tuple[int, ...]
) -> tuple[list[pl.Tree], Array, Array]:
    """Gradient descent on the network itself: weights, distances and sums of the largest residuals at these times."""
    start, iterates, sums, total = w, [], [], 0.0
    for t in range(1, times[-1] + 1):
        with torch.no_grad():
            residual = torch.func.functional_call(module, w, (x,)) - y
        total += float(residual.abs().max()) if t > 1 else 0.0
        step = pl.algorithms.ntk.jacobian.vjp(module, w, x, residual / residual.numel())
        w = {n: w[n] - lr * step[n] for n in w}
        if t in times:
            iterates.append(w)
            sums.append(total)
    return iterates, np.array([_distance(iterate, start) for iterate in iterates]), np.array(sums)


def _distance(a: pl.Tree, b: pl.Tree) -> float:
    return float(sum((a[n] - b[n]).abs().double().sum() for n in a))

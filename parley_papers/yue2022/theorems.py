"""Lemmas 1 to 4 and Theorems 1 and 2 on wide two-layer networks, as measured residuals beside their bounds."""

from __future__ import annotations

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.line_panels import LinePanel, line_panels
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, near, study
from parley_papers.threads import single_threaded
from parley_papers.yue2022.two_layer import (
    TwoLayer,
    averaged,
    descended,
    drift_bound,
    evolved,
    flip_bound,
    flips,
    weight_bound,
    width_bound,
)

DELTA = 0.1
"""The bounds may fail with this chance."""
SAMPLES, INPUTS = 24, 12
CLIENTS = (1, 2, 4, 8)
_WIDTH: dict[Scale, int] = {"smoke": 1024, "cpu": 8192, "paper": 32768}
_DRAWS: dict[Scale, int] = {"smoke": 40, "cpu": 400, "paper": 1000}


@study("003/theorems", scales={scale: f"{SAMPLES} samples, {n} neurons" for scale, n in _WIDTH.items()})
@single_threaded
def theorems(scale: Scale, context: StudyContext) -> StudyResult:
    """NTK-FL's residual decays as Theorem 1 says; Theorem 2's factor 1/M_k is not there with (1) as printed."""
    rng = pl.Key(0).fold("003/theorems").numpy()
    x, y, width = _sphere(SAMPLES, rng), rng.choice([-1.0, 1.0], SAMPLES), _WIDTH[scale]
    smallest = float(np.linalg.eigvalsh(pl.theory.kernel.TwoLayerNTK()(x, x))[0])
    net = TwoLayer.drawn(width, INPUTS, rng)
    lemma_checks = [*_lemmas(x, rng, _DRAWS[scale], width), *_second_lemma(net, x, y)]
    decay_checks, decay = _first_theorem(net, x, y, smallest)
    round_checks, rounds = _second_theorem(net, x, y, smallest)
    about = f"a two-layer network of {width} neurons, {SAMPLES} samples"
    left = LinePanel("||f - y||^2 / ||f_0 - y||^2", "steps t", decay["t"], _curves(decay, "t"), scale="log")
    right = LinePanel("-ln of the residual left, one client = 1", "clients M", rounds["M"], _curves(rounds, "M"), "log")
    figures = {
        "residuals": line_panels(f"Theorem 1: {about}", [left]),
        "rounds": line_panels(f"A round of FedAvg: {about}", [right]),
    }
    data = {"smallest eigenvalue": smallest, "decay": decay, "rounds": rounds}
    return context.result([*lemma_checks, *decay_checks, *round_checks], figures, data)


def _curves(values_of: dict[str, Array], across: str) -> dict[str, Array]:
    return {name: values for name, values in values_of.items() if name != across}


def _sphere(count: int, rng: np.random.Generator) -> Array:
    points = rng.standard_normal((count, INPUTS))
    return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True), dtype=np.float64)


def _lemmas(x: Array, rng: np.random.Generator, draws: int, width: int) -> list[Check]:
    """How often each bound fails over many draws of the weights."""
    narrow, radius, limit = 256, 0.01, pl.theory.kernel.TwoLayerNTK()(x, x)
    flipped, drifted, apart = [], [], []
    for _ in range(draws):
        net = TwoLayer.drawn(narrow, INPUTS, rng)
        flipped.append(flips(net, x, radius)[0] > flip_bound(narrow, radius, DELTA))
        away = rng.standard_normal(net.v.shape)
        other = net.moved(radius * away / np.linalg.norm(away, axis=1, keepdims=True))
        drifted.append(np.linalg.norm(other.kernel(x) - net.kernel(x), 2) > drift_bound(len(x), radius, DELTA))
        apart.append(np.linalg.norm(net.kernel(x) - limit, 2) > width_bound(len(x), narrow, DELTA))
    # One neuron and orthogonal samples: each fails with the chance erf(R/sqrt(2)) < delta, all of them together do not.
    single = [
        flips(TwoLayer.drawn(1, INPUTS, rng), np.eye(INPUTS), 0.12) > flip_bound(1, 0.12, DELTA)
        for _ in range(20 * draws)
    ]
    gaps = [float(np.linalg.norm(TwoLayer.drawn(n, INPUTS, rng).kernel(x) - limit, 2)) for n in (width // 64, width)]
    return [
        at_most("Lemma 1, one sample: share of draws beyond the bound", float(np.mean(flipped)), DELTA),
        at_most("Lemma 1, one neuron, one sample", float(np.mean([s[0] for s in single])), DELTA),
        at_least(
            "Lemma 1, one neuron, any of 12 samples: beyond delta", float(np.mean([s.any() for s in single])), 0.3
        ),
        at_most("Lemma 3: share of draws beyond the bound", float(np.mean(drifted)), DELTA),
        at_most("Lemma 4: share of draws beyond the bound", float(np.mean(apart)), DELTA),
        near("Lemma 4: the distance falls as the width's root, 64 times wider", gaps[0] / gaps[1], 8.0, relative=0.6),
    ]


def _second_lemma(net: TwoLayer, x: Array, y: Array) -> list[Check]:
    """NTK-FL's weights beside gradient descent's: equal after one step, then apart, within (22)."""
    lr, gaps, largest = 1.0, [], []
    walked = net
    for t in range(1, 101):
        walked = descended(walked, x, y, lr / len(x), 1)
        gaps.append(float(np.abs(evolved(net, x, y, lr / len(x), t).v - walked.v).sum()))
        largest.append(float(np.abs(walked(x) - y).max()))
    bounds = weight_bound(len(net.c), INPUTS, lr, np.array(largest[:-1]), DELTA)
    return [
        at_most("Lemma 2: gap of the weights after one step", gaps[0], 1e-9),
        at_least("Lemma 2: gap after 100 steps over that after 10", gaps[99] / gaps[9], 1.0),
        at_most("Lemma 2: largest share of the bound", float(np.max(np.array(gaps[1:]) / bounds[1:])), 1.0),
    ]


def _first_theorem(net: TwoLayer, x: Array, y: Array, smallest: float) -> tuple[list[Check], dict[str, Array]]:
    """||f - y||^2 of the network itself after t steps, by NTK-FL's weights and by descent, beside (14)."""
    lr, start = 1.0, float(np.sum((net(x) - y) ** 2))
    times = np.array([1, 3, 10, 30, 100, 300, 1000])
    ours = np.array([np.sum((evolved(net, x, y, lr / len(x), int(t))(x) - y) ** 2) / start for t in times])
    walked, theirs, before = net, [], 0
    for t in times:
        walked, before = descended(walked, x, y, lr / len(x), int(t) - before), int(t)
        theirs.append(float(np.sum((walked(x) - y) ** 2)) / start)
    bound = (1 - lr * smallest / (2 * len(x))) ** times
    checks = [
        at_most("Theorem 1: NTK-FL's residual over the bound, worst time", float((ours / bound).max()), 1.0),
        at_most(
            "Theorem 1: descent's residual over the bound, worst time", float((np.array(theirs) / bound).max()), 1.0
        ),
    ]
    curves = {"t": times.astype(np.float64), "NTK-FL": ours, "gradient descent": np.array(theirs), "Theorem 1": bound}
    return checks, curves


def _second_theorem(net: TwoLayer, x: Array, y: Array, smallest: float) -> tuple[list[Check], dict[str, Array]]:
    """-ln of the residual after a FedAvg round, for ever more clients of ever fewer samples."""
    lr, steps, start = 0.02, 10, float(np.sum((net(x) - y) ** 2))

    def decay(clients: int, per: int) -> float:
        split, targets = np.split(x, clients), np.split(y, clients)
        return -float(np.log(np.sum((averaged(net, split, targets, lr / per, steps)(x) - y) ** 2) / start))

    objective = np.array([decay(m, SAMPLES // m) for m in CLIENTS])  # (1): the mean over a client's N_m samples
    printed = np.array([decay(m, SAMPLES) for m in CLIENTS])  # (58b): over all N_k
    bound = np.array([-np.log(1 - lr * steps * smallest / (2 * SAMPLES * m)) for m in CLIENTS])
    ours = -float(np.log(np.sum((evolved(net, x, y, lr / SAMPLES, 1000)(x) - y) ** 2) / start))
    most = CLIENTS[-1]
    checks = [
        at_least("Theorem 2: FedAvg's decay over the bound's, fewest", float((objective / bound).min()), 1.0),
        at_least(f"with (1), {most} clients' decay over one's: no 1/M", float(objective[-1] / objective[0]), 0.8),
        near(f"with (58b), {most} clients' over one's: 1/M", float(printed[-1] / printed[0]), 1 / most, relative=0.2),
        at_least("Remark 2: NTK-FL's decay in 1000 steps over FedAvg's in 10, two clients", ours / objective[1], 10.0),
    ]
    curves = {
        "M": np.array(CLIENTS, dtype=np.float64),
        "mean over N_m, as in (1)": objective / objective[0],
        "over N_k, as in (58b)": printed / printed[0],
        "1/M": 1 / np.array(CLIENTS, dtype=np.float64),
    }
    return checks, curves

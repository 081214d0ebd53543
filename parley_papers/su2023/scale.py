"""Large federations: the matrix-free and the feature-space path against a dense reference and the clock."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.line_panels import LinePanel, line_panels
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_most, claims, study
from parley_papers.su2023.setting import SIGMA
from parley_papers.threads import one_thread

T = TypeVar("T")
CLIENTS, COLUMNS, LENGTHSCALE = 50, 5, 0.5
METHOD = pl.theory.kernel.GradientSteps(0.5, 5)
LEADING, TOLERANCE, ROUNDS = 50, 1e-10, 1000
CLIENT_SAMPLES = 2500
"""Of each client in feature space."""


@dataclass(frozen=True)
class Sizes:
    """What a scale measures."""

    N: int
    reference: int
    """N of the comparison with the dense decomposition."""
    features: int
    streamed: tuple[int, ...]
    """Values of N in feature space, the last one the largest."""


_SIZES: dict[Scale, Sizes] = {
    "smoke": Sizes(1200, 600, 40, (5_000, 20_000)),
    "cpu": Sizes(10_000, 3_000, 200, (125_000, 250_000, 500_000, 1_000_000)),
    "paper": Sizes(10_000, 3_000, 200, (125_000, 250_000, 500_000, 1_000_000)),
}


def federation(N: int) -> tuple[pl.theory.kernel.KernelFederation, Array]:
    """Uniform points in five dimensions, clients of random sizes, and noisy targets."""
    rng = pl.Key(0).fold("000/scale").fold(N).numpy()
    x = rng.uniform(0, 1, (N, COLUMNS))
    cuts = np.sort(rng.choice(np.arange(1, N), CLIENTS - 1, replace=False))
    y = np.sin(4 * x.sum(axis=1)) + SIGMA * rng.standard_normal(N)
    return pl.theory.kernel.KernelFederation.of(pl.theory.kernel.RBF(LENGTHSCALE), np.split(x, cuts), METHOD), y


def against_dense(N: int) -> list[Check]:
    """How far the two large paths are from one dense eigendecomposition."""
    case, y = federation(N)
    exact = pl.theory.kernel.exact_basis(case)
    spectrum = pl.theory.kernel.basis_spectrum(case, exact)
    t = np.array([1, 10, 100, ROUNDS])
    expected = pl.theory.kernel.trajectory(case, y, basis=exact).at(t)
    eigenvalues = pl.theory.kernel.leading_eigenvalues(case, LEADING, TOLERANCE)
    low = pl.theory.kernel.lowrank_basis(case, 1e-4)
    reference = zip(eigenvalues, (spectrum.kernel, spectrum.update), strict=True)
    return [
        at_most(
            f"rounds 1 to {ROUNDS}, off the dense reference at N = {N}",
            float(np.abs(pl.theory.kernel.krylov_trajectory(case, y, t).at(t) - expected).max()),
            1e-9,
        ),
        at_most(
            f"{LEADING} leading eigenvalues of K and K P, off the dense ones, relative",
            max(float(np.abs(values / dense[:LEADING] - 1).max()) for values, dense in reference),
            10 * TOLERANCE,
        ),
        at_most(
            "low-rank eigenvalues of K P off the dense ones, over the error they state",
            float(np.abs(low.values - exact.values[: len(low.values)]).max()) / low.error,
            1.0,
        ),
    ]


def streamed(N: int, features: int) -> float:
    """CPU seconds for 1,000 rounds and the limit on N samples that are made client by client."""
    phi = pl.theory.kernel.random_fourier(COLUMNS, features, pl.Key(0).fold("000/scale").numpy(), LENGTHSCALE)

    def points() -> Iterator[Array]:
        for number in range(N // CLIENT_SAMPLES):
            yield pl.Key(0).fold("000/scale").fold(number).numpy().uniform(0, 1, (CLIENT_SAMPLES, COLUMNS))

    begun = time.process_time()
    space = pl.theory.kernel.FeatureSpace.of(phi, points(), (np.sin(4 * x.sum(axis=1)) for x in points()), METHOD)
    space.theta(ROUNDS)
    space.limit()
    return time.process_time() - begun


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    begun = time.perf_counter()
    return work(), time.perf_counter() - begun


def _peak_gigabytes() -> float:
    """The process's largest resident set so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


@study(
    "000/scale",
    scales={s: f"N = {z.N:,} kernel, N = {z.streamed[-1]:,} random features" for s, z in _SIZES.items()},
)
def scale(scale: Scale, context: StudyContext) -> StudyResult:
    """P, the leading spectrum and 1,000 rounds at N = 10,000 in a minute; random features linear in N."""
    sizes = _SIZES[scale]
    case, y = federation(sizes.N)
    at = np.arange(1, ROUNDS + 1)
    seconds: dict[str, float] = {}
    _, seconds["P"] = _timed(lambda: case.blocks)
    _, seconds["K"] = _timed(lambda: case.gram.dense)
    (kernel, update), seconds["leading spectrum"] = _timed(
        lambda: pl.theory.kernel.leading_eigenvalues(case, LEADING, TOLERANCE)
    )
    fitted, seconds["1,000 rounds"] = _timed(lambda: pl.theory.kernel.krylov_trajectory(case, y, ROUNDS).at(at))
    peak = _peak_gigabytes()
    error = np.sqrt(((fitted - np.sin(4 * case.samples.x.sum(axis=1))[:, None]) ** 2).mean(axis=0))
    del fitted
    with one_thread():  # many small matrices; the large ones above may use every core
        cpu = [streamed(N, sizes.features) for N in context.track(sizes.streamed, "random features")]
        reference = against_dense(sizes.reference)
    growth = (cpu[-1] / cpu[0]) / (sizes.streamed[-1] / sizes.streamed[0])
    checks = [
        *reference,
        at_most("Lambda_i over s lambda_i, largest (Lemma 5)", float((update / (METHOD.s * kernel)).max()), 1 + 1e-9),
    ]
    costs = [
        at_most(f"seconds at N = {sizes.N:,}", sum(seconds.values()), 60.0),
        at_most("peak memory, GB", peak, 6.0),
        at_most("growth of random features' CPU time over that of N", growth, 1.3),
    ]
    checks += claims(costs, scale)
    order, streams = np.arange(1.0, LEADING + 1), np.array(sizes.streamed, dtype=np.float64)
    panels = [
        LinePanel("leading eigenvalues", "number", order, {"of K": kernel, "of K P": update}, "log"),
        LinePanel("error at the samples", "round", at.astype(np.float64), {"": error}, "log", "log"),
        LinePanel("CPU seconds with random features", "samples N", streams, {"": np.array(cpu)}, "log", "log"),
    ]
    data = {"seconds": seconds, "peak_GB": peak, "N": sizes.streamed, "feature_cpu_seconds": cpu, "growth": growth}
    return context.result(checks, {"scale": line_panels(f"A federation of {sizes.N:,} samples", panels)}, data)

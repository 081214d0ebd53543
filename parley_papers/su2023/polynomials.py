"""Figure 6: fitting U_5 from clients on disjoint intervals has the optimal rate 1/N."""

from __future__ import annotations

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.line_panels import LinePanel, line_panels
from parley_papers.harness import Scale, StudyContext, StudyResult, at_least, at_most, holds, near, study
from parley_papers.su2023.setting import SIGMA, methods
from parley_papers.threads import single_threaded

CLIENTS = 20
TRUTH = np.array([0.0, 6.0, 0.0, -32.0, 0.0, 32.0])
"""U_5(x) = 32 x^5 - 32 x^3 + 6 x."""
SAMPLES = np.arange(1, 11)
_TRIALS: dict[Scale, int] = {"smoke": 500, "cpu": 500, "paper": 500}
_powers = np.add.outer(np.arange(6), np.arange(6))
INTEGRALS = np.where(_powers % 2 == 0, 2.0 / (_powers + 1), 0.0)
"""The integrals of x^(i+j) over [-1, 1]: the paper's Monte Carlo integral in closed form."""


def grids(n: int) -> list[Array]:
    """Client i has n evenly spaced points on [-1 + 2(i-1)/M, -1 + 2i/M)."""
    return [-1 + 2 * (i + np.arange(n) / n) / CLIENTS for i in range(CLIENTS)]


def squared_errors(n: int, method: pl.theory.kernel.KernelStep, trials: int) -> tuple[Array, float]:
    """The integrated squared error of the limit, [trials], and its exact expectation."""
    rng = pl.Key(0).fold("000/fig6").fold(n).numpy()
    phi = pl.theory.kernel.Monomials(5)
    noisy = [(phi(x) @ TRUTH)[:, None] + SIGMA * rng.standard_normal((n, trials)) for x in grids(n)]
    space = pl.theory.kernel.FeatureSpace.of(phi, grids(n), noisy, method)
    away = space.limit() - TRUTH[:, None]
    inverse = np.linalg.inv(space.update)
    exact = SIGMA**2 / space.N * float(np.trace(INTEGRALS @ inverse @ space.noise @ inverse))
    return np.asarray(np.einsum("it,ij,jt->t", away, INTEGRALS, away), dtype=np.float64), exact


@study("000/fig6", scales={scale: f"20 clients, 1-10 samples each, {n} trials" for scale, n in _TRIALS.items()})
@single_threaded
def fig6(scale: Scale, context: StudyContext) -> StudyResult:
    """All methods fit U_5 at the rate 1/N; s = 10 has the lowest slope of 1/MSE."""
    N = CLIENTS * SAMPLES.astype(np.float64)
    means: dict[str, Array] = {}
    expected: dict[str, Array] = {}
    for name, method in methods().items():
        simulated = [squared_errors(int(n), method, _TRIALS[scale]) for n in SAMPLES]
        means[name] = np.array([errors.mean() for errors, _ in simulated])
        expected[name] = np.array([exact for _, exact in simulated])
    # Relative standard error of a mean of 500 squared errors is about 3%.
    worst = max(float(np.abs(means[name] / expected[name] - 1).max()) for name in means)
    fits = {name: np.polyfit(N, 1 / values, 1) for name, values in means.items()}
    straight = {name: float(np.corrcoef(N, 1 / values)[0, 1] ** 2) for name, values in means.items()}
    rate = {name: float(np.polyfit(np.log(N), np.log(values), 1)[0]) for name, values in means.items()}
    slopes = {name: float(fit[0]) for name, fit in fits.items()}
    checks = [
        *(at_least(f"1/MSE is linear in N, R^2, {name}", value, 0.98) for name, value in straight.items()),
        *(near(f"exponent of N in the MSE, {name}", value, -1.0, relative=0.15) for name, value in rate.items()),
        holds(
            "lowest slope of 1/MSE",
            min(slopes, key=lambda name: slopes[name]) == "FedAvg, s = 10",
            min(slopes, key=lambda name: slopes[name]),
            "FedAvg, s = 10",
        ),
        near("slope of s = 10 over s = 1", slopes["FedAvg, s = 10"] / slopes["FedAvg, s = 1"], 1.0, relative=0.25),
        at_most("mean of the trials off their exact expectation, relative", worst, 0.15),
    ]
    panels = [
        LinePanel("mean squared error", "samples N of all clients", N, means),
        LinePanel(
            "1 / mean squared error",
            "samples N of all clients",
            N,
            {name: 1 / values for name, values in means.items()},
        ),
    ]
    data = {"N": N, "mse": means, "expected_mse": expected, "slopes": slopes}
    return context.result(checks, {"fig6": line_panels("Fitting a polynomial from disjoint intervals", panels)}, data)

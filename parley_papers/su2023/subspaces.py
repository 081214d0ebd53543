"""Figure 5: the federation gain where every client sees a random subspace of the features; coupon collecting."""

from __future__ import annotations

import numpy as np

import parley as pl
from parley_papers.figures.line_panels import LinePanel, line_panels
from parley_papers.harness import Scale, StudyContext, StudyResult, at_least, at_most, near, study
from parley_papers.su2023.setting import ETA, SCARCE_AND_RICH, D, methods, noise
from parley_papers.threads import single_threaded

_DIMENSIONS = (1, 4, 8, 12, 14, 16, 18, 20, 22, 24, 27, 32, 40, 46, 54, 60, 70, 80, 90, 100)
_SIZES: dict[Scale, tuple[int, tuple[int, ...]]] = {
    "smoke": (6, (8, 12, 16, 20, 24, 27, 40, 60, 80, 100)),
    "cpu": (20, _DIMENSIONS),
    "paper": (20, _DIMENSIONS),
}
"""Trials, and the values of r. Where r = n = 50 the scarce client's least squares fit just interpolates, its error and
with it the gain explode (beyond 1000 in some draws): that one value is left out."""


def subspace_gains(r: int, trial: int) -> dict[str, dict[str, float]]:
    """One trial's ratio of norms at dimension r for a scarce and a rich client, by method; eta = 0.1 r / d.

    Rows of X_i are N(0, (d/r) I_E) for a random set E of r coordinates; within a trial these sets grow with r.
    """
    key = pl.Key(0).fold("000/fig5").fold(trial)
    rng, sets = key.fold(r).numpy(), key.fold("sets").numpy()
    theta = sets.standard_normal(D)
    designs = []
    for n in SCARCE_AND_RICH:
        designs.append(np.zeros((n, D)))
        designs[-1][:, sets.permutation(D)[:r]] = np.sqrt(D / r) * rng.standard_normal((n, r))
    targets = [X @ theta + xi for X, xi in zip(designs, noise(rng, SCARCE_AND_RICH), strict=True)]
    alone = {j: float(np.linalg.norm(pl.theory.gain.minimum_norm(designs[j], targets[j]) - theta)) for j in (0, 10)}
    gains: dict[str, dict[str, float]] = {"scarce": {}, "rich": {}}
    for name, method in methods(ETA * r / D).items():
        error = float(
            np.linalg.norm(
                pl.theory.kernel.FeatureSpace.of(pl.theory.kernel.Identity(), designs, targets, method).limit() - theta
            )
        )
        gains["scarce"][name], gains["rich"][name] = alone[0] / error, alone[10] / error
    return gains


@study("000/fig5", scales={scale: f"20 clients, d = 100, {n} trials" for scale, (n, _) in _SIZES.items()})
@single_threaded
def fig5(scale: Scale, context: StudyContext) -> StudyResult:
    """The gain jumps once all dimensions are covered, near r = 16-23; a scarce client keeps it, a rich one does not."""
    trials, listed = _SIZES[scale]
    r = np.array(listed, dtype=np.float64)
    gains = [[subspace_gains(value, trial) for trial in range(trials)] for value in context.track(listed, "dimensions")]
    curves = {
        kind: {name: np.array([np.mean([t[kind][name] for t in row]) for row in gains]) for name in methods()}
        for kind in ("scarce", "rich")
    }
    scarce, rich = curves["scarce"]["FedAvg, s = 1"], curves["rich"]["FedAvg, s = 1"]
    plateau = float(scarce[r >= 32].mean())
    half = float(np.interp(plateau / 2, scarce[r <= 40], r[r <= 40]))
    spread = max(
        float((np.max(list(by.values()), axis=0) / np.min(list(by.values()), axis=0)).max()) for by in curves.values()
    )
    checks = [
        near("scarce plateau (paper: about 107)", plateau, 107, relative=0.1),
        near("r at which half of the plateau is reached (paper: 16-23)", half, 20, absolute=4),
        at_most("gain at r = 12, of the plateau", float(scarce[r == 12][0]) / plateau, 0.25),
        at_least("gain at r = 27, of the plateau", float(scarce[r == 27][0]) / plateau, 0.6),
        near("rich over scarce gain, mean over r <= 27", float((rich / scarce)[r <= 27].mean()), 1.0, relative=0.15),
        at_most("rich gain at r = 100 over its largest", float(rich[-1] / rich.max()), 0.1),
        at_most("largest over smallest gain among methods", spread, 1.15),
    ]
    panels = [
        LinePanel(
            f"data-{kind} client",
            "dimension r of each client's subspace",
            r,
            curves[kind],
            upright={23.0: "M r = d log d"},
        )
        for kind in ("scarce", "rich")
    ]
    figure = line_panels(
        "Federation gain (ratio of norms) when each client sees r of 100 dimensions", panels, share=True
    )
    return context.result(checks, {"fig5": figure}, {"r": r, "ratio_of_norms": curves})

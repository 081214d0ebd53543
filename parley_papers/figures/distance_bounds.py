"""Paper 001's printed and repaired bounds beside what they bound: distance of the minimisers, and momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import parley as pl
from parley_papers.arrays import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style


def bounds_figure(
    angles: Array,
    swept: Sequence[pl.theory.distance.Distances],
    marked: float,
    rounds: NDArray[np.int64],
    worst: Array,
    rho: float,
) -> Figure:
    """Left: two clients over the angle between them, one of them marked. Right: heavy ball's worst error by round."""
    result = style.new_figure(11, 4.6, 0.12, 0.08)
    left, right = result.subplots(1, 2)
    for name, values, colour, dashes in (
        ("repaired bound", [distance.corrected for distance in swept], style.PALETTE[2], "-"),
        ("distance of the minimisers", [distance.actual for distance in swept], style.INK, "-"),
        (
            "printed bound, 8C$\\Delta$",
            [distance.printed_in_paper for distance in swept],
            style.PALETTE[1],
            (0, (4, 2)),
        ),
    ):
        left.plot(angles, values, color=colour, linestyle=dashes, linewidth=2.4, label=name)
    left.axvline(marked, color=style.FAINT, linewidth=1, linestyle=(0, (2, 3)), zorder=1)
    style.panel(left, "Two clients, $\\kappa_0$ = 1000, K = 2", "angle between their steep directions")
    left.set_ylim(bottom=0)
    right.plot(
        rounds,
        pl.theory.servers.transient(rho, rounds, "heavy-ball") * rho**rounds,
        color=style.PALETTE[2],
        linewidth=5,
        label="repaired: (1 + (1+$\\rho$)T) $\\rho^T$",
    )
    right.plot(rounds, worst, color=style.INK, linewidth=2, label="worst error left")
    right.plot(
        rounds, rho**rounds, color=style.PALETTE[1], linestyle=(0, (4, 2)), linewidth=2.4, label="printed: $\\rho^T$"
    )
    right.set_yscale("log")
    style.panel(right, "Heavy ball, $\\kappa$ = 100", "round T")
    for axes in (left, right):
        style.clean(axes, "both")
        axes.minorticks_off()
        style.legend(axes, loc="best")
    return result

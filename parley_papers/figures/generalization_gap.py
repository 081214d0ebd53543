"""Bound and truth side by side: one panel per question, dots for what was measured, lines for what is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import parley as pl
from parley_papers.arrays import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style

GapKind = Literal["truth", "bound", "false"]
_MARKS: dict[GapKind, dict[str, Any]] = {
    "truth": {"linestyle": "none", "marker": "o", "markersize": 5.5, "markeredgecolor": "white", "zorder": 4},
    "bound": {"linewidth": 2.2, "solid_capstyle": "round", "zorder": 3},
    "false": {"linewidth": 1.8, "linestyle": (0, (3, 2)), "zorder": 2},
}


@dataclass(frozen=True, eq=False)
class GapCurve:
    """Values over x; `errors` are standard errors, drawn two to each side."""

    name: str
    x: Array
    y: Array
    kind: GapKind
    colour: int = 0
    errors: Array | None = None
    exact: Array | None = None
    """The closed form of what the dots measure."""


@dataclass(frozen=True)
class GapPanel:
    """One question."""

    name: str
    across: str
    curves: Sequence[GapCurve]


def gap_figure(panels: Sequence[GapPanel]) -> Figure:
    """Two by two, logarithmic, each panel with its legend."""
    figure = style.new_figure(12, 9.6, 0.12, 0.12)
    for axes, shown in zip(figure.subplots(2, 2).ravel(), panels, strict=True):
        for curve in shown.curves:
            colour = style.PALETTE[curve.colour]
            if curve.exact is not None:
                axes.plot(curve.x, curve.exact, color=colour, linewidth=1, zorder=2)
            spread = None if curve.errors is None else 2 * curve.errors
            axes.errorbar(
                curve.x, curve.y, spread, color=colour, label=curve.name, elinewidth=1.2, **_MARKS[curve.kind]
            )
        positive = min(float(x[x > 0].min()) for x in (np.asarray(curve.x) for curve in shown.curves))
        zero = any((np.asarray(curve.x) == 0).any() for curve in shown.curves)
        axes.set_xscale("symlog", linthresh=positive, linscale=0.5) if zero else axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(shown.curves[0].x, [f"{value:g}" for value in shown.curves[0].x])
        style.clean(axes, "both")
        axes.minorticks_off()
        style.panel(axes, shown.name, shown.across)
        style.y_label(axes, "generalisation gap")
        style.legend(axes, 9.5, loc="best")
    style.headline(
        figure, "Dots: the true gap. Solid lines: Theorems 4.1 and C.1, which hold. Dashed: what does not bound it"
    )
    return figure

"""Panels of lines, as in paper 000's figures: one panel per question, one line per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import parley as pl
from parley_papers.arrays import Array

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

style = pl.report.style

_DASHES = {
    "FedAvg, s = 1": "-",
    "FedAvg, s = 5": (0, (6, 1.5)),
    "FedAvg, s = 10": (0, (2, 1)),
    "FedProx": (0, (5, 1, 1, 1)),
}


@dataclass(frozen=True)
class LinePanel:
    """Curves over x, by method."""

    name: str
    across: str
    x: Array
    curves: Mapping[str, Array]
    scale: Literal["linear", "log"] = "linear"
    across_scale: Literal["linear", "log"] = "linear"
    upright: Mapping[float, str] = field(default_factory=dict)
    """Where to draw a vertical line, and what it says."""
    levels: Sequence[float] = ()
    """Where to draw horizontal lines."""
    from_zero: bool = False
    """Whether the vertical axis starts at zero."""


def line_panels(title: str, panels: Sequence[LinePanel], share: bool = False) -> Figure:
    """The panels side by side, one legend under them; `share` gives panels in one row the same vertical axis."""
    rows = 1 if len(panels) < 4 else 2
    figure = style.new_figure(12, 4.9 * rows, 0.12, 0.08)
    grid = figure.subplots(rows, len(panels) // rows, squeeze=False, sharey=share or rows > 1)
    for axes, shown in zip(grid.ravel(), panels, strict=True):
        for (name, values), colour in zip(shown.curves.items(), style.PALETTE, strict=False):
            axes.plot(shown.x, values, color=colour, linewidth=2.2, linestyle=_DASHES.get(name, "-"), label=name)
        for level in shown.levels:
            axes.axhline(level, color=style.FAINT, linewidth=1.2, zorder=1)
        axes.set_yscale(shown.scale)
        axes.set_xscale(shown.across_scale)
        if shown.from_zero:
            axes.set_ylim(bottom=0)
        style.clean(axes)
        axes.minorticks_off()
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                _number(axis)
        style.panel(axes, shown.name, shown.across)
        for x, words in shown.upright.items():
            axes.axvline(x, color=style.FAINT, linewidth=1.2, linestyle=(0, (1, 1.5)))
            across = float(axes.transAxes.inverted().transform(axes.transData.transform((x, 1.0)))[0])
            side = -1 if across > 0.8 else 1
            axes.annotate(
                words,
                (x, 0.03),
                xycoords=("data", "axes fraction"),
                xytext=(5 * side, 0),
                textcoords="offset points",
                color=style.FAINT,
                fontsize=10,
                va="bottom",
                ha="right" if side < 0 else "left",
            )
    handles, labels = grid.ravel()[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=11, labelcolor=style.INK
    )
    style.headline(figure, title)
    return figure


def _number(axis: Axis) -> None:
    """Ticks between the powers of ten where an axis spans less than two of them."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    low, high = axis.get_view_interval()
    if high / low < 100:
        axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if high / low < 10 else (1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))

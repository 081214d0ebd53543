"""Accuracy over the megabytes that clients sent, a panel per method and a line per channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import parley as pl
from parley_papers.arrays import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style


@dataclass(frozen=True, eq=False)
class TrafficCurve:
    """One run: accuracy at the evaluated rounds, and megabytes sent by all clients until then."""

    megabytes: Array
    accuracy: Array


def traffic_figure(title: str, panels: Mapping[str, Mapping[str, TrafficCurve]], about: str) -> Figure:
    """`panels`: method -> channel -> its curve. The first panel has all channels, the first of them, in grey, being
    none."""
    figure = style.new_figure(4 * len(panels), 5.2, 0.1, 0.08)
    names = list(next(iter(panels.values())))
    stroke_of = dict(zip(names, style.strokes(["pooled", *["federated"] * (len(names) - 1)]), strict=True))
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (method, curves) in zip(grid, panels.items(), strict=True):
        for name, curve in curves.items():
            stroke = stroke_of[name]
            axes.plot(curve.megabytes, curve.accuracy, **stroke.line, label=name)
            axes.plot(curve.megabytes[-1:], curve.accuracy[-1:], **stroke.dot)
        axes.set_xscale("log")
        style.clean(axes)
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        style.percent_axis(axes.yaxis)
        style.panel(axes, method, "MB sent by all clients")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=5, frameon=False, fontsize=10, labelcolor=style.INK)
    style.headline(figure, title)
    style.footnote(figure, about)
    return figure

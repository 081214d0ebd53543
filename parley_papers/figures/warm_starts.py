"""Paper 002's Figure 1: accuracy over transmitted models, with and without a warm start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import parley as pl
from parley_papers.arrays import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style


@dataclass(frozen=True)
class WarmCurve:
    """One arm: its accuracy after 1, 2, ... models, for every seed."""

    name: str
    accuracy: Sequence[Array]
    colour: int
    warm: bool


def warm_starts(panels: Mapping[str, Sequence[WarmCurve]], about: str) -> Figure:
    """One panel per data set: solid lines began warm, dashed ones from random weights; the range of seeds is shaded."""
    from matplotlib.ticker import MaxNLocator

    figure = style.new_figure(6.4 * len(panels), 4.6, 0.1, 0.08)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    seen = np.concatenate([values for curves in panels.values() for curve in curves for values in curve.accuracy])
    for axes, (title, curves) in zip(grid, panels.items(), strict=True):
        for curve in curves:
            values, colour = np.stack(curve.accuracy), style.PALETTE[curve.colour]
            models, dashes = np.arange(1, values.shape[1] + 1), "-" if curve.warm else (0, (4, 1.5))
            axes.plot(models, values.mean(axis=0), color=colour, linewidth=2, linestyle=dashes, label=curve.name)
            if len(values) > 1:
                axes.fill_between(models, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.13, linewidth=0)
        style.panel(axes, title, "transmitted models")
        style.accuracy_scale(axes, float(np.nanmin(seen)), float(np.nanmax(seen)))
        style.y_label(axes, "test accuracy")
        style.clean(axes, "both")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=10, labelcolor=style.INK
    )
    style.footnote(figure, about)
    return figure

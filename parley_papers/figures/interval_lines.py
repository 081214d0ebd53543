"""Accuracy over a setting, a line per method with the 95% intervals over seeds (paper 003, Figures 5 and 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

import parley as pl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style


def interval_lines(
    title: str, across: str, x: Sequence[float], lines: Mapping[str, Sequence[pl.report.SeedMean]], about: str
) -> Figure:
    """`lines`: name -> the means at every x."""
    figure = style.new_figure(8.2, 4.6, 0.1, 0.08)
    axes = figure.add_subplot()
    width = (max(x) - min(x)) * 0.006 or 0.01
    for index, (name, means) in enumerate(lines.items()):
        at = np.asarray(x) + (index - (len(lines) - 1) / 2) * width  # intervals stay apart
        half = np.nan_to_num([mean.half for mean in means])
        axes.errorbar(
            at,
            [mean.value for mean in means],
            half,
            fmt="o-",
            color=style.PALETTE[index % len(style.PALETTE)],
            linewidth=1.8,
            markersize=6,
            capsize=3,
            label=name,
        )
    style.panel(axes, title, across)
    axes.set_xticks(list(x), [f"{value:g}" for value in x])
    style.y_label(axes, "test accuracy")
    style.percent_axis(axes.yaxis)
    style.clean(axes)
    style.legend(axes, 9.5, loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=min(len(lines), 4))
    style.footnote(figure, about)
    return figure

"""Accuracy over a setting, a line per method with the 95% intervals over seeds (paper 003, Figures 5 and 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from parley.report.seed_means import SeedMean
from parley.report.style import PALETTE, clean, footnote, legend, new_figure, panel, percent_axis, y_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def interval_lines(
    title: str, across: str, x: Sequence[float], lines: Mapping[str, Sequence[SeedMean]], about: str
) -> Figure:
    """`lines`: name -> the means at every x."""
    figure = new_figure(8.2, 4.6, 0.1, 0.08)
    axes = figure.add_subplot()
    width = (max(x) - min(x)) * 0.006 or 0.01
    for place, (name, means) in enumerate(lines.items()):
        at = np.asarray(x) + (place - (len(lines) - 1) / 2) * width  # intervals stay apart
        half = np.nan_to_num([mean.half for mean in means])
        axes.errorbar(
            at, [mean.value for mean in means], half, fmt="o-", color=PALETTE[place % len(PALETTE)], linewidth=1.8,
            markersize=6, capsize=3, label=name,
        )  # fmt: skip
    panel(axes, title, across)
    axes.set_xticks(list(x), [f"{value:g}" for value in x])
    y_label(axes, "test accuracy")
    percent_axis(axes.yaxis)
    clean(axes)
    legend(axes, 9.5, loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=min(len(lines), 4))
    footnote(figure, about)
    return figure

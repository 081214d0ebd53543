"""Accuracies of several arms with their intervals, beside published values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import parley as pl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style


@dataclass(frozen=True)
class MeanRow:
    """A dot with its interval, and what the paper reports, if anything."""

    label: str
    mean: pl.report.SeedMean
    paper: float | None = None


def accuracy_ladder(rows: Sequence[MeanRow], title: str, across: str, about: str, joined: bool = True) -> Figure:
    """Accuracy upwards, one place per row: our mean with its interval, every seed, and the paper's value."""
    figure = style.new_figure(8.2, 4.6, 0.1, 0.08)
    axes = figure.add_subplot()
    xs = np.arange(len(rows))
    ours = np.array([row.mean.value for row in rows])
    half = np.nan_to_num(np.array([row.mean.half for row in rows]))
    for x, row in zip(xs, rows, strict=True):
        axes.plot(
            [x + 0.12] * len(row.mean.seeds), row.mean.seeds, ".", color=style.PALETTE[0], alpha=0.45, markersize=6
        )
    if joined:
        axes.plot(xs, ours, color=style.PALETTE[0], linewidth=1.2, alpha=0.5)
    axes.errorbar(
        xs,
        ours,
        half,
        fmt="o",
        color=style.PALETTE[0],
        markersize=7,
        capsize=4,
        linewidth=1.6,
        label="here: mean, 95% interval, seeds",
    )
    paper = [(x, row.paper) for x, row in zip(xs, rows, strict=True) if row.paper is not None]
    if paper:
        axes.plot(
            *zip(*paper, strict=True),
            "D--" if joined else "D",
            color=style.PALETTE[1],
            markersize=5,
            linewidth=1.2,
            alpha=0.85,
            label="paper (ResNet-20)",
        )
    style.panel(axes, title, across)
    axes.set_xticks(xs, [row.label for row in rows])
    style.y_label(axes, "test accuracy")
    style.percent_axis(axes.yaxis)
    style.clean(axes)
    axes.margins(x=0.08)
    style.legend(axes, 9.5, loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=2)
    style.footnote(figure, about)
    return figure

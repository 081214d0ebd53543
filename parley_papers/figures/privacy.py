"""Accuracy against epsilon: what privacy costs, for federations of several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import parley as pl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style


@dataclass(frozen=True)
class PrivacyCurve:
    """One federation: accuracies by budget, a value per seed, and those without privacy."""

    name: str
    accuracy: Mapping[float, Sequence[float]]
    without: Sequence[float]


def privacy_figure(title: str, curves: Sequence[PrivacyCurve], about: str) -> Figure:
    """A line per federation with the range over seeds shaded; dashed, the same without privacy."""
    figure = style.new_figure(7.2, 4.6, 0.1, 0.08)
    axes = figure.subplots()
    for curve, colour in zip(curves, style.PALETTE, strict=False):
        budgets = sorted(curve.accuracy)
        values = np.array([curve.accuracy[budget] for budget in budgets])
        axes.plot(budgets, values.mean(axis=1), color=colour, linewidth=2.2, marker="o", markersize=5, label=curve.name)
        axes.fill_between(budgets, values.min(axis=1), values.max(axis=1), color=colour, alpha=0.15, linewidth=0)
        axes.axhline(float(np.mean(curve.without)), color=colour, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.set_xscale("log")
    ticks = sorted({budget for curve in curves for budget in curve.accuracy})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    style.percent_axis(axes.yaxis)
    style.y_label(axes, "test accuracy")
    style.clean(axes)
    style.panel(axes, "", "epsilon   (\u2190 more private)")
    style.legend(axes, loc="lower right")
    style.headline(figure, title)
    style.footnote(figure, f"{about}; dashed: without privacy")
    return figure

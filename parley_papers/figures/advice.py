"""How far advised settings are from the best of a grid: the share of federations within each factor, and one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import parley as pl
from parley_papers.arrays import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style

_RANGE = 0.3, 30.0
_TICKS = (0.3, 0.5, 1, 2, 4, 10, 30)
_MARKS: tuple[dict[str, Any], ...] = (
    {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.8},
    {"marker": "o", "markersize": 5},
)


def factors_figure(factors: Mapping[str, Array], seeds: Sequence[int]) -> Figure:
    """On the left a curve per kind of advice, the higher the better; on the right every federation by its seed."""
    result = style.new_figure(11, 4.4, 0.12, 0.08)
    left, right = result.subplots(1, 2)
    for index, (name, ratios) in enumerate(factors.items()):
        shown = np.clip(np.where(np.isfinite(ratios), ratios, _RANGE[1]), *_RANGE)
        steps = np.concatenate([[_RANGE[0]], np.sort(shown), [_RANGE[1]]])
        shares = np.concatenate([[0.0], np.arange(1, len(shown) + 1) / len(shown), [(ratios < np.inf).mean()]])
        colour = style.PALETTE[index]
        left.step(steps, shares, where="post", color=colour, linewidth=2.2, label=name)
        right.plot(seeds, shown, linestyle="none", color=colour, label=name, **_MARKS[index])
    for axes, scaled in ((left, "x"), (right, "y")):
        line = axes.axvline if scaled == "x" else axes.axhline
        for limit in (1.15, 2.0):
            line(limit, color=style.FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        axes.set(**{f"{scaled}scale": "log", f"{scaled}lim": _RANGE, f"{scaled}ticks": _TICKS})
        axis = axes.xaxis if scaled == "x" else axes.yaxis
        axis.set_major_formatter(lambda value, _: f"{value:g}x")
        axes.minorticks_off()
        style.clean(axes, "both")
    left.set_ylim(0, 1.02)
    right.set_xticks(seeds[::5])
    style.footnote(
        result, "Dashed: 1.15x and 2x. At 0.3x also what the grid never reached, at 30x also what advice never did."
    )
    style.percent_axis(left.yaxis)
    style.panel(left, "cost until the target, advised over best of the grid", "factor")
    style.panel(right, "federation by federation", "seed")
    style.y_label(left, "share of federations")
    style.legend(left, loc="lower right")
    return result


def megabytes_figure(curves: Mapping[str, Mapping[str, Sequence[tuple[Array, Array]]]]) -> Figure:
    """A panel per data set: accuracy over megabytes, thin lines for seeds, thick ones for their mean."""
    result = style.new_figure(5.6 * len(curves), 4.4, 0.12, 0.08)
    grid = result.subplots(1, len(curves), squeeze=False)[0]
    for axes, (name, arms) in zip(grid, curves.items(), strict=True):
        for index, (arm, seeds) in enumerate(arms.items()):
            for spent, accuracy in seeds:
                axes.plot(spent, accuracy, color=style.PALETTE[index], linewidth=0.8, alpha=0.45)
            most = min(float(spent[-1]) for spent, _ in seeds)
            common = np.linspace(0, most, 200)
            mean = np.mean([np.interp(common, spent, accuracy) for spent, accuracy in seeds], axis=0)
            axes.plot(common, mean, color=style.PALETTE[index], linewidth=2.4, label=arm)
        style.panel(axes, name, "megabytes, all clients together")
        style.percent_axis(axes.yaxis)
        style.clean(axes, "both")
        style.legend(axes, loc="lower right")
    style.y_label(grid[0], "test accuracy")
    return result

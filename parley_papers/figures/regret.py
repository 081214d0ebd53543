"""How far advised settings are from the best ones: the share of problems within each factor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.frontiers import SERVER_NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style

_WIDEST = 100.0


def regret_figure(regrets: Mapping[str, Mapping[str, Array]]) -> Figure:
    """One panel per kind of problem, one curve per server; the higher a curve, the better the advice."""
    result = style.new_figure(11, 4.6, 0.12, 0.08)
    grid = result.subplots(1, len(regrets), squeeze=False)[0]
    for axes, (kind, by_server) in zip(grid, regrets.items(), strict=True):
        for index, (server, ratios) in enumerate(by_server.items()):
            factors = np.concatenate([[1.0], np.sort(np.maximum(ratios, 1.0)), [max(_WIDEST, ratios.max())]])
            shares = np.concatenate([[0.0], np.arange(1, len(ratios) + 1) / len(ratios), [1.0]])
            within = f"{SERVER_NAMES[server]}: {(ratios <= 2).mean():.0%} within 2x"
            axes.step(factors, shares, where="post", color=style.PALETTE[index], linewidth=2.2, label=within)
        axes.axvline(2, color=style.FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        axes.set_xscale("log")
        axes.set(xlim=(1, _WIDEST), ylim=(0, 1.02), xticks=(1, 2, 5, 10, 20, 50, 100))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        axes.minorticks_off()
        style.percent_axis(axes.yaxis)
        style.panel(axes, f"{kind} clients", "distance at round T, advised over best")
        style.clean(axes, "both")
        style.legend(axes, loc="lower right")
    style.y_label(grid[0], "share of problems")
    return result

"""How far advised settings are from the best ones: the share of problems within each factor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from parley.report.style import FAINT, INK, PALETTE, clean, panel, percent_axis
from parley.studies.paper001.style import SERVER_NAMES
from parley.theory.theta import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDEST = 100.0


def regret_figure(regrets: Mapping[str, Mapping[str, Array]]) -> Figure:
    """One panel per kind of problem, one curve per server; the higher a curve, the better the advice."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    result = Figure(figsize=(11, 4.6), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08), facecolor="white")
    grid = result.subplots(1, len(regrets), squeeze=False)[0]
    for axes, (kind, by_server) in zip(grid, regrets.items(), strict=True):
        for place, (server, own) in enumerate(by_server.items()):
            factors = np.concatenate([[1.0], np.sort(np.maximum(own, 1.0)), [max(_WIDEST, own.max())]])
            shares = np.concatenate([[0.0], np.arange(1, len(own) + 1) / len(own), [1.0]])
            within = f"{SERVER_NAMES[server]}: {(own <= 2).mean():.0%} within 2x"
            axes.step(factors, shares, where="post", color=PALETTE[place], linewidth=2.2, label=within)
        axes.axvline(2, color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        axes.set_xscale("log")
        axes.set(xlim=(1, _WIDEST), ylim=(0, 1.02), xticks=(1, 2, 5, 10, 20, 50, 100))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        axes.minorticks_off()
        percent_axis(axes.yaxis)
        panel(axes, f"{kind} clients", "distance at round T, advised over best")
        clean(axes, "both")
        axes.legend(frameon=False, fontsize=10, labelcolor=INK, loc="lower right")
    grid[0].set_ylabel("share of problems", color=INK, fontsize=10.5)
    return result

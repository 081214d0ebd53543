"""The trade-off at a glance: distance to the point a method aims at, and to the optimum it should have aimed at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import parley as pl
from parley_papers.arrays import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

style = pl.report.style

_SHADES = ("#0b3c5d", "#1f78a4", "#e08e2b", "#b3361e")
"""From few local steps to many; told apart by lightness too."""
_FLOOR, _EARLY = 1e-13, 61


@dataclass(frozen=True, eq=False)
class Trade:
    """One method's distances, [T + 1] each, and how far its goal is from the optimum."""

    name: str
    to_goal: Array
    to_optimum: Array
    drift: float


def trade_off(trades: list[Trade]) -> Figure:
    """Two panels over rounds: every method gets to its own goal; few get near the optimum, and those slowly."""
    figure = style.new_figure(12, 5, 0.12, 0.06)
    left, right = figure.subplots(1, 2)
    for trade, shade in zip(trades, _SHADES, strict=True):
        end = next((t for t, distance in enumerate(trade.to_goal) if distance < _FLOOR), len(trade.to_goal))
        _curve(left, trade.name, trade.to_goal[:end], shade, above=end < len(trade.to_goal))
        _curve(right, trade.name, trade.to_optimum[:_EARLY], shade)
    for axes, name, last in (
        (left, "to where the method leads", len(trades[0].to_goal) - 1),
        (right, "to the true optimum", _EARLY - 1),
    ):
        axes.set_yscale("log")
        axes.set_xlim(0, last * 1.28)
        axes.set_xticks(range(0, last + 1, last // 3))
        style.clean(axes)
        axes.minorticks_off()
        style.panel(axes, f"distance {name}", "round")
    style.headline(figure, "More local steps: faster, to the wrong place")
    return figure


def _curve(axes: Axes, name: str, distances: Array, colour: str, above: bool = False) -> None:
    """A line with its name at its end."""
    axes.plot(distances, color=colour, linewidth=2.4, solid_capstyle="round")
    axes.annotate(
        name,
        (len(distances) - 1, float(distances[-1])),
        xytext=(7, 4 if above else 0),
        textcoords="offset points",
        color=colour,
        fontsize=11,
        va="bottom" if above else "center",
    )

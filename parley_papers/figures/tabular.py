"""Boosted trees on tables: a dot per method and table, and what training costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import parley as pl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style


@dataclass(frozen=True)
class Dots:
    """The scores of one table, by method."""

    name: str
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Bars:
    """One cost, in multiples of the reference's."""

    name: str
    times: float


def tabular(title: str, tables: Sequence[Dots], costs: Sequence[Bars], limit: float) -> Figure:
    """Scores to the left, one row per table; costs to the right with the line they should stay left of."""
    figure = style.new_figure(12, 4.6, 0.12, 0.08)
    left, right = figure.subplots(1, 2, width_ratios=(1.9, 1))
    methods = list(tables[0].scores)
    for height, table in enumerate(reversed(tables)):
        ends = min(table.scores.values()), max(table.scores.values())
        left.hlines(height, *ends, color="#dfe4e9", linewidth=3, zorder=1)
        for number, method in enumerate(methods):
            first = number == 0
            left.plot(
                table.scores[method],
                height,
                marker="D" if number == 1 else "o",
                markersize=13 if first else 8,
                color=style.PALETTE[number // 2 if number > 1 else 0],
                markerfacecolor=_fill(number),
                markeredgewidth=2,
                linestyle="none",
                zorder=2 if first else 3,
                label=method if height == 0 else None,
            )
    left.set_yticks(range(len(tables)), [table.name for table in reversed(tables)])
    left.set_ylim(-0.6, len(tables) - 0.4)
    style.percent_axis(left.xaxis)
    style.clean(left, "x")
    style.panel(left, "accuracy, or share of variance explained (diabetes), on rows left out", "")
    right.barh(range(len(costs)), [cost.times for cost in reversed(costs)], color=style.PALETTE[0], height=0.55)
    for height, cost in enumerate(reversed(costs)):
        at = (cost.times, height)
        right.annotate(f"{cost.times:.1f}", at, (5, 0), textcoords="offset points", va="center", color=style.INK)
    right.axvline(limit, color=style.FAINT, linewidth=1.2, linestyle=(0, (4, 2)))
    right.set_yticks(range(len(costs)), [cost.name for cost in reversed(costs)])
    right.margins(x=0.12)
    style.clean(right, None)
    style.panel(right, "training time over scikit-learn's", "times, on one core")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=10, labelcolor=style.INK)
    style.headline(figure, title)
    return figure


def _fill(number: int) -> str:
    """Hollow for the reference and for rows dealt by target."""
    return "white" if number == 1 or (number > 1 and number % 2) else style.PALETTE[number // 2 if number > 1 else 0]

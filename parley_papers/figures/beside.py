"""Our rows beside somebody else's: means with deviations, a place per row."""

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
class Beside:
    """A row: our mean and deviation, and theirs."""

    name: str
    ours: float
    ours_spread: float
    theirs: float
    theirs_spread: float


def beside(title: str, rows: Sequence[Beside], ours: str, theirs: str, about: str) -> Figure:
    """Two dots a row, each with its deviation to both sides."""
    figure = style.new_figure(8.2, 4.2, 0.1, 0.08)
    axes = figure.add_subplot()
    heights = np.arange(len(rows))[::-1]
    for shift, colour, label, values in (
        (0.13, style.PALETTE[0], ours, [(row.ours, row.ours_spread) for row in rows]),
        (-0.13, style.PALETTE[1], theirs, [(row.theirs, row.theirs_spread) for row in rows]),
    ):
        means, spreads = zip(*values, strict=True)
        axes.errorbar(
            means, heights + shift, xerr=spreads, fmt="o", color=colour, capsize=3, linewidth=1.6, label=label
        )
    axes.set_yticks(heights, [row.name for row in rows])
    style.panel(axes, title, "")
    style.clean(axes, "x")
    style.legend(axes, 9.5, loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=2)
    style.footnote(figure, about)
    return figure

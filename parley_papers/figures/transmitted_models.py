"""Paper 002's Table 2 as a figure: transmitted models until a target, by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

import parley as pl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style


@dataclass(frozen=True)
class TargetRow:
    """A target and the models that each method needed."""

    label: str
    counts: Mapping[str, pl.report.SeedMean]
    paper: Mapping[str, int] = field(default_factory=dict)


def transmitted_models(rows: Sequence[TargetRow], rounds: int, about: str) -> Figure:
    """Targets downwards, models to the right: a bar for the mean, a dot for each seed, a diamond for the paper's."""
    from matplotlib.ticker import MaxNLocator

    methods = list(rows[0].counts)
    figure = style.new_figure(8.4, 1.4 + 1.25 * len(rows), 0.1, 0.08)
    axes = figure.add_subplot()
    height = 0.8 / len(methods)
    for index, row in enumerate(rows):
        for number, method in enumerate(methods):
            y = index - 0.4 + height * (number + 0.5)
            count = row.counts[method]
            axes.barh(
                y,
                count.value,
                height * 0.82,
                color=style.PALETTE[number],
                alpha=0.85,
                label=method if not index else None,
            )
            axes.plot(count.seeds, [y] * len(count.seeds), ".", color=style.INK, markersize=5, zorder=4)
            words = f"> {rounds}" if min(count.seeds) > rounds else f"{count.value:.1f}".removesuffix(".0")
            axes.annotate(
                words,
                (max(count.seeds), y),
                (7, 0),
                textcoords="offset points",
                va="center",
                fontsize=9.5,
                color=style.INK,
            )
            if method in row.paper:
                axes.plot(row.paper[method], y, "D", color="white", markeredgecolor=style.INK, markersize=5, zorder=5)
    axes.set_yticks(np.arange(len(rows)), [row.label for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(max(count.seeds) for row in rows for count in row.counts.values()))
    style.panel(axes, "Models sent until the accuracy is reached", "transmitted models; dots are seeds")
    style.clean(axes, "x")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    style.legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    style.footnote(figure, about)
    return figure

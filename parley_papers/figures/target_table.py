"""A table of what methods took to reach a target: rounds, megabytes both ways, seconds (paper 003, Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import parley as pl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style

_COLUMNS = ("method", "reached", "rounds", "MiB up", "MiB down", "seconds", "best accuracy")
_PLACES = (0.0, 0.5, 0.58, 0.68, 0.78, 0.88, 1.0)


@dataclass(frozen=True)
class TargetRow:
    """One method: means over seeds until the target, or of whole runs where it was not reached."""

    name: str
    reached: int
    seeds: int
    rounds: pl.report.SeedMean
    up: pl.report.SeedMean
    down: pl.report.SeedMean
    seconds: pl.report.SeedMean
    best: pl.report.SeedMean

    def plain(self) -> dict[str, Any]:
        means = {
            "rounds": self.rounds,
            "MiB up": self.up,
            "MiB down": self.down,
            "seconds": self.seconds,
            "best accuracy": self.best,
        }
        return {"reached": f"{self.reached} of {self.seeds} seeds", **{n: mean.plain() for n, mean in means.items()}}


def target_table(title: str, rows: Sequence[TargetRow]) -> Figure:
    """The table as a figure; numbers of runs that did not get there are in grey."""
    figure = style.new_figure(12.5, 1.1 + 0.36 * (len(rows) + 1), 0.05, 0.05)
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(rows) + 0.6, -0.6)
    for x, column in zip(_PLACES, _COLUMNS, strict=True):
        axes.text(x, 0, column, color=style.FAINT, fontsize=10.5, ha="right" if x else "left", va="center")
    for number, row in enumerate(rows, 1):
        colour = style.INK if row.reached == row.seeds else style.FAINT
        cells = (
            row.name,
            f"{row.reached} of {row.seeds}",
            f"{row.rounds.value:.0f}",
            _short(row.up.value),
            _short(row.down.value),
            _short(row.seconds.value),
            f"{row.best.value:.1%}",
        )
        for x, cell in zip(_PLACES, cells, strict=True):
            axes.text(x, number, cell, color=colour, fontsize=11, ha="right" if x else "left", va="center")
        axes.axhline(number - 0.5, color=style.FAINT, linewidth=0.5, alpha=0.5)
    style.headline(figure, title)
    return figure


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"

"""Means over seeds with 95% intervals, and the figure that shows them beside published values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parley.report.style import PALETTE, clean, footnote, legend, new_figure, panel, percent_axis, y_label
from parley.study.seeds import half_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class SeedMean:
    """The mean over seeds and half the width of its 95% interval (Student's t; NaN for one seed)."""

    value: float
    half: float
    seeds: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> SeedMean:
        seeds = np.asarray(values, dtype=np.float64)
        return cls(float(seeds.mean()), half_interval(values), tuple(seeds.tolist()))

    def __sub__(self, other: SeedMean) -> SeedMean:
        """The difference, seed by seed."""
        return SeedMean.of([a - b for a, b in zip(self.seeds, other.seeds, strict=True)])

    def plain(self) -> dict[str, Any]:
        return {"mean": self.value, "half": self.half, "seeds": self.seeds}


@dataclass(frozen=True)
class MeanRow:
    """A dot with its interval, and what the paper reports, if anything."""

    label: str
    mean: SeedMean
    paper: float | None = None


def accuracy_ladder(rows: Sequence[MeanRow], title: str, across: str, about: str, joined: bool = True) -> Figure:
    """Accuracy upwards, one place per row: our mean with its interval, every seed, and the paper's value."""
    figure = new_figure(8.2, 4.6, 0.1, 0.08)
    axes = figure.add_subplot()
    places = np.arange(len(rows))
    ours = np.array([row.mean.value for row in rows])
    half = np.nan_to_num(np.array([row.mean.half for row in rows]))
    for place, row in zip(places, rows, strict=True):
        axes.plot([place + 0.12] * len(row.mean.seeds), row.mean.seeds, ".", color=PALETTE[0], alpha=0.45, markersize=6)
    if joined:
        axes.plot(places, ours, color=PALETTE[0], linewidth=1.2, alpha=0.5)
    axes.errorbar(places, ours, half, fmt="o", color=PALETTE[0], markersize=7, capsize=4, linewidth=1.6,
                  label="here: mean, 95% interval, seeds")  # fmt: skip
    paper = [(place, row.paper) for place, row in zip(places, rows, strict=True) if row.paper is not None]
    if paper:
        axes.plot(*zip(*paper, strict=True), "D--" if joined else "D", color=PALETTE[1], markersize=5, linewidth=1.2,
                  alpha=0.85, label="paper (ResNet-20)")  # fmt: skip
    panel(axes, title, across)
    axes.set_xticks(places, [row.label for row in rows])
    y_label(axes, "test accuracy")
    percent_axis(axes.yaxis)
    clean(axes)
    axes.margins(x=0.08)
    legend(axes, 9.5, loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=2)
    footnote(figure, about)
    return figure

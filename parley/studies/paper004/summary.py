"""What trials say: means with 95% intervals over seeds, as numbers and as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from parley.report.style import FAINT, INK, PALETTE, clean, panel, percent_axis
from parley.studies.paper004.trials import SIZES, Arm, Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from parley.studies.harness import Context


@dataclass(frozen=True)
class Mean:
    """The mean over seeds and half the width of its 95% interval (Student's t; NaN for one seed)."""

    value: float
    half: float
    seeds: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        own = np.asarray(values, dtype=np.float64)
        half = np.nan
        if len(own) > 1:
            half = float(stats.t.ppf(0.975, len(own) - 1) * own.std(ddof=1) / np.sqrt(len(own)))
        return cls(float(own.mean()), half, tuple(own.tolist()))

    def plain(self) -> dict[str, Any]:
        return {"mean": self.value, "half": self.half, "seeds": self.seeds}


def accuracies(trials: Mapping[Arm, Sequence[Trial]], context: Context) -> dict[Arm, Mean]:
    """Each arm's test accuracy at the end."""
    size = SIZES[context.scale]
    return {arm: Mean.of([trial.final(size.last, size.told) for trial in own]) for arm, own in trials.items()}


def difference(first: Mean, second: Mean) -> Mean:
    """Seed by seed."""
    return Mean.of([a - b for a, b in zip(first.seeds, second.seeds, strict=True)])


def numbers(trials: Mapping[Arm, Sequence[Trial]], means: Mapping[Arm, Mean]) -> dict[str, Any]:
    """For a study's data: every arm's rate, accuracy, and its trials."""
    return {
        "arms": [
            {"arm": vars(own[0].arm), "accuracy": means[arm].plain(), "trials": [trial.plain() for trial in own]}
            for arm, own in trials.items()
        ]
    }


@dataclass(frozen=True)
class Row:
    """A dot with its interval, and what the paper reports, if anything."""

    label: str
    mean: Mean
    paper: float | None = None


def ladder(rows: Sequence[Row], title: str, across: str, about: str, joined: bool = True) -> Figure:
    """Accuracy upwards, one place per row: our mean with its interval, every seed, and the paper's value."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(8.2, 4.6), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08), facecolor="white")
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
        look = "D--" if joined else "D"
        axes.plot(*zip(*paper, strict=True), look, color=PALETTE[1], markersize=5, linewidth=1.2, alpha=0.85,
                  label="paper (ResNet-20)")  # fmt: skip
    panel(axes, title, across)
    axes.set_xticks(places, [row.label for row in rows])
    axes.set_ylabel("test accuracy", color=INK, fontsize=10.5)
    percent_axis(axes.yaxis)
    clean(axes)
    axes.margins(x=0.08)
    axes.legend(frameon=False, fontsize=9.5, labelcolor=INK, loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=2)
    figure.supxlabel(about, fontsize=9, color=FAINT)
    return figure

"""Curves of trained arms over rounds: the mean over seeds, the range shaded, as far as all seeds got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

import parley as pl
from parley_papers.arrays import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style


class Measured(Protocol):
    """A run, as far as curves need it: values at the evaluated rounds."""

    @property
    def rounds(self) -> Array: ...

    @property
    def accuracy(self) -> Array: ...

    @property
    def loss(self) -> Array: ...


@dataclass(frozen=True)
class ArmCurve:
    """One arm: its trials with different seeds."""

    name: str
    trials: Sequence[Measured]
    colour: int


def training_curves(
    parts: Mapping[str, Sequence[ArmCurve]], what: Literal["accuracy", "loss"], about: str, low: float | None = None
) -> Figure:
    """One panel per part; accuracy upwards in percent, from `low` on, loss on a logarithmic scale."""
    from matplotlib.ticker import MaxNLocator

    result = style.new_figure(5.6 * len(parts), 4.4, 0.1, 0.08)
    grid = result.subplots(1, len(parts), squeeze=False)[0]
    seen = np.concatenate([getattr(trial, what) for arms in parts.values() for arm in arms for trial in arm.trials])
    for axes, (title, arms) in zip(grid, parts.items(), strict=True):
        for arm in arms:
            shared = min(len(trial.rounds) for trial in arm.trials)  # runs that stop at a target end apart
            values = np.stack([getattr(trial, what)[:shared] for trial in arm.trials])
            rounds, colour = arm.trials[0].rounds[:shared], style.PALETTE[arm.colour % len(style.PALETTE)]
            axes.plot(rounds, values.mean(axis=0), color=colour, linewidth=2, label=arm.name)
            if len(values) > 1:
                axes.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        style.panel(axes, title, "round")
        if what == "accuracy":
            style.accuracy_scale(axes, float(np.nanmin(seen)), float(np.nanmax(seen)))
            axes.set_ylim(bottom=low)
            style.y_label(axes, "test accuracy")
        else:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
            style.y_label(axes, "loss")
        style.clean(axes, "both")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.tick_params(which="minor", length=0, labelsize=9, labelcolor=style.FAINT)
        style.legend(axes)
    style.footnote(result, about)
    return result

"""Curves of trained arms over rounds: the mean over seeds, the range shaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from parley.report.style import FAINT, INK, PALETTE, accuracy_scale, clean, panel
from parley.theory.theta import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Measured(Protocol):
    """A run, as far as curves need it: values at the evaluated rounds."""

    @property
    def rounds(self) -> Array: ...

    @property
    def accuracy(self) -> Array: ...

    @property
    def loss(self) -> Array: ...


@dataclass(frozen=True)
class Line:
    """One arm: its trials with different seeds."""

    name: str
    trials: Sequence[Measured]
    colour: int


def lines(parts: Mapping[str, Sequence[Line]], what: Literal["accuracy", "loss"], about: str) -> Figure:
    """One panel per part; accuracy upwards in percent, loss on a logarithmic scale."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    size = (5.6 * len(parts), 4.4)
    result = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08), facecolor="white")
    grid = result.subplots(1, len(parts), squeeze=False)[0]
    seen = np.concatenate([getattr(trial, what) for own in parts.values() for line in own for trial in line.trials])
    for axes, (title, own) in zip(grid, parts.items(), strict=True):
        for line in own:
            values = np.stack([getattr(trial, what) for trial in line.trials])
            rounds, colour = line.trials[0].rounds, PALETTE[line.colour % len(PALETTE)]
            axes.plot(rounds, values.mean(axis=0), color=colour, linewidth=2, label=line.name)
            if len(values) > 1:
                axes.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        panel(axes, title, "round")
        if what == "accuracy":
            accuracy_scale(axes, float(np.nanmin(seen)), float(np.nanmax(seen)))
            axes.set_ylabel("test accuracy", color=INK, fontsize=10.5)
        else:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
            axes.set_ylabel("loss", color=INK, fontsize=10.5)
        clean(axes, "both")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.tick_params(which="minor", length=0, labelsize=9, labelcolor=FAINT)
        axes.legend(frameon=False, fontsize=10, labelcolor=INK)
    result.supxlabel(about, fontsize=9, color=FAINT)
    return result

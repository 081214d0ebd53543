"""Gains by two estimates, a row per client: both with their intervals, on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import parley as pl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style

Interval = tuple[float, float, float]
"""A gain, and the ends of its interval."""
_WIDEST = 20.0
_TICKS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0)


@dataclass(frozen=True)
class GainPair:
    """A client's gain, estimated and compared."""

    client: str
    estimated: Interval
    compared: Interval


def gains_beside(panels: Mapping[str, Sequence[GainPair]], first: str, other: str, about: str) -> Figure:
    """A panel for each federation."""
    figure = style.new_figure(5.2 * len(panels), 4.2, 0.1, 0.08)
    for axes, (title, pairs) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True):
        heights = np.arange(len(pairs))[::-1]
        for shift, colour, label, rows in (
            (0.13, style.PALETTE[0], first, [pair.estimated for pair in pairs]),
            (-0.13, style.PALETTE[1], other, [pair.compared for pair in pairs]),
        ):
            value, low, high = np.clip(np.array(rows).T, 1 / _WIDEST, _WIDEST)
            axes.errorbar(
                value,
                heights + shift,
                xerr=[value - low, high - value],
                fmt="o",
                color=colour,
                capsize=3,
                linewidth=1.6,
                label=label,
            )
        axes.axvline(1.0, color=style.FAINT, linewidth=1.2)
        axes.set_xscale("log")
        axes.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
        axes.minorticks_off()
        axes.set_yticks(heights, [pair.client for pair in pairs])
        style.panel(axes, title, "gain by joining")
        ends = [end for pair in pairs for end in (*pair.estimated, *pair.compared)]
        axes.set_xlim(max(0.8 * min(ends), 0.8 / _WIDEST), min(1.25 * max(ends), 1.25 * _WIDEST))
        style.clean(axes, "x")
    style.legend(axes, 9.5, loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=2)
    style.footnote(figure, about)
    return figure

"""How far clients' copies of each layer are apart, over rounds and layer by layer (paper 004, Figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

import parley as pl
from parley_papers.arrays import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style


def consensus_figure(layers: Sequence[str], distances: Array, tau: int, about: str) -> Figure:
    """Distances [seed, layer, round]: a line per layer, light (first) to dark (last), and means of the second half."""
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    figure = style.new_figure(11.2, 4.6, 0.12, 0.08)
    over, dots = figure.subplots(1, 2, width_ratios=(1.6, 1), sharey=True)
    shades = colormaps["viridis_r"](np.linspace(0.08, 0.95, len(layers)))
    for number, (series, shade) in enumerate(zip(distances.mean(axis=0), shades, strict=True), 1):
        name = f"layer {number}" if number < len(layers) else f"layer {number} (head)"
        over.plot(np.arange(1, len(series) + 1), series, color=shade, linewidth=1.8, label=name)
    style.panel(over, "Consensus distance per parameter", f"round of $\\tau$ = {tau} steps")
    over.set_yscale("log")
    style.y_label(over, "mean square distance to the mean model")
    over.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    second = distances[:, :, distances.shape[2] // 2 :].mean(axis=2)
    numbers = np.arange(1, len(layers) + 1)
    dots.plot(numbers, second.mean(axis=0), color=style.FAINT, linewidth=1.2, zorder=1)
    dots.scatter(numbers, second.mean(axis=0), color=shades, s=70, zorder=3)
    for seed in second:
        dots.plot(numbers + 0.15, seed, ".", color=style.INK, alpha=0.55, markersize=4)
    style.panel(dots, "Mean of the second half; small: seeds", "layer")
    dots.set_xticks(numbers if len(numbers) <= 10 else numbers[::3])
    for axes in (over, dots):
        style.clean(axes, "both")
        axes.minorticks_off()
    if len(layers) <= 8:
        style.legend(over, 9, ncols=2)
    style.footnote(figure, about)
    return figure

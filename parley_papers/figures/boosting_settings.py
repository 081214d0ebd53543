"""Where functional boosting converges to in the three settings of paper 002's Table 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import parley as pl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style

Neighbourhood = tuple[Sequence[float], Sequence[float], Sequence[float]]
"""Distances between the clients' inputs, errors there, and the theorem's radii."""


def settings_figure(
    rounds: Sequence[int], errors: Mapping[str, Sequence[float]], tv: Neighbourhood, w1: Neighbourhood
) -> Figure:
    """Errors over T where inputs agree; over omega, with the radius, where they do not."""
    figure = style.new_figure(12, 4.6, 0.12, 0.08)
    over, *near = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    for index, (name, values) in enumerate(errors.items()):
        without = "no residual" in name
        over.plot(
            rounds,
            values,
            marker="o",
            markersize=5,
            linewidth=2.2,
            color=style.PALETTE[index % 2],
            label=name,
            linestyle=(0, (4, 2)) if without else "-",
        )
    over.set(xscale="log", yscale="log")
    over.set_ylim(bottom=min(min(values) for values in errors.values()) / 30)  # room for the legend
    over.set_xticks(rounds, [str(T) for T in rounds])
    style.panel(over, "Inputs alike, labels in conflict", "rounds T, with K = $\\sqrt{T}$")
    style.y_label(over, "squared distance to f*")
    for axes, name, (omega, distances, radius), colour in (
        (near[0], "Cross-entropy, L-infinity oracle", tv, style.PALETTE[2]),
        (near[1], "Square loss, Lipschitz oracle", w1, style.PALETTE[3]),
    ):
        some = [index for index, value in enumerate(radius) if value > 0]
        with_radius, limit = [omega[index] for index in some], [radius[index] for index in some]
        axes.plot(
            with_radius, limit, color=style.FAINT, linewidth=1.4, linestyle=(0, (4, 3)), label="radius, constant 1"
        )
        axes.plot(
            omega, distances, color=colour, marker="o", markersize=5, linewidth=2.2, label="squared distance to f*"
        )
        style.panel(
            axes, name, "$\\omega_{TV}$" if axes is near[0] else "$\\omega_{W1}$ ($\\omega_{TV}$ = 0.75 throughout)"
        )
        axes.set(yscale="log")
    near[1].set(xscale="log")
    for axes in (over, *near):
        axes.minorticks_off()
        style.clean(axes, "both")
        style.legend(axes, 9, loc="lower left" if axes is over else "lower right")
    style.headline(figure, "What functional boosting converges to (paper 002, Table 1)")
    return figure

"""How paper 001's frontiers are drawn: convergence rate to the right, suboptimality upwards, the origin is best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import parley as pl
from parley_papers.arrays import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

style = pl.report.style

SERVER_NAMES = {"none": "no momentum", "nesterov": "Nesterov", "heavy-ball": "heavy ball"}


@dataclass(frozen=True)
class FrontierCurve:
    """One line of a panel, or single points of it."""

    name: str
    rho: Array
    delta: Array
    colour: int = 0
    mark: str = "solid"
    """solid, wide, thin (on top), dashed (behind the others), dot or ring."""
    width: float | None = None
    """Instead of the mark's line width."""

    @classmethod
    def of(
        cls,
        name: str,
        frontier: pl.theory.frontier.Frontier,
        colour: int = 0,
        mark: str = "solid",
        width: float | None = None,
    ) -> FrontierCurve:
        return cls(name, frontier.rho, frontier.delta, colour, mark, width)

    @property
    def style(self) -> dict[str, Any]:
        drawn = {"color": style.PALETTE[self.colour % len(style.PALETTE)], "label": self.name} | _MARKS[self.mark]
        if self.mark == "ring":
            drawn |= {"markeredgecolor": drawn["color"]}
        return drawn if self.width is None else drawn | {"linewidth": self.width}


_POINT = {"linewidth": 0, "marker": "o", "markersize": 8, "zorder": 6}
_MARKS: dict[str, dict[str, Any]] = {
    "solid": {"linewidth": 2.4, "zorder": 3, "solid_capstyle": "round"},
    "wide": {"linewidth": 4.5, "zorder": 3, "solid_capstyle": "round"},
    "thin": {"linewidth": 1.5, "zorder": 4, "solid_capstyle": "round"},
    "dashed": {"linewidth": 1.8, "linestyle": (0, (4, 2)), "zorder": 2},
    "dot": _POINT | {"markeredgecolor": "white"},
    "ring": _POINT | {"markerfacecolor": "white", "markeredgewidth": 2.0},
}


def frontier_panels(
    parts: Mapping[str, Sequence[FrontierCurve]], title: str, columns: int = 3, symmetry: bool = False
) -> Figure:
    """One panel per part with its legend, on the same axes, below what they show; `symmetry` draws rho = Delta."""
    columns = min(columns, len(parts))
    rows = -(-len(parts) // columns)
    side = 5.2 if columns == 1 else 4.1
    result = style.new_figure(side * columns + 0.5, side * rows + 0.6, 0.08, 0.08)
    grid = result.subplots(rows, columns, squeeze=False)
    for index, (name, curves) in enumerate(parts.items()):
        axes = grid[index // columns][index % columns]
        if symmetry:
            axes.plot([0, 1], [0, 1], color=style.FAINT, linewidth=0.9, linestyle=(0, (2, 3)), zorder=1)
        for curve in curves:
            # From the one-shot end on, so that a dash begins there.
            axes.plot(curve.rho[::-1], curve.delta[::-1], **curve.style)
        style.panel(axes, name, "convergence rate $\\rho$   (\u2190 faster)")
        if index % columns == 0:
            style.y_label(axes, "suboptimality $\\Delta$   (\u2190 more accurate)")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), box_aspect=1)
        style.clean(axes, "both")
        style.legend(axes, 9, loc="best")
    for empty in range(len(parts), rows * columns):
        grid[empty // columns][empty % columns].set_visible(False)
    style.headline(result, title, 12.5)
    return result


def frontier_numbers(parts: Mapping[str, Sequence[FrontierCurve]]) -> dict[str, Any]:
    """What is drawn, for the study's data."""
    return {
        title: [{"name": c.name, "rho": c.rho, "delta": c.delta} for c in curves] for title, curves in parts.items()
    }

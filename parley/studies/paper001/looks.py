"""How paper 001's frontiers are drawn: convergence rate to the right, suboptimality upwards, the origin is best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parley.report.looks import INK, PALETTE, clean, panel
from parley.theory.frontier import Frontier
from parley.theory.theta import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SERVER_NAMES = {"none": "no momentum", "nesterov": "Nesterov", "heavy-ball": "heavy ball"}


@dataclass(frozen=True)
class Curve:
    """One line of a panel; `mark` draws single points (a cusp, an end) instead."""

    name: str
    rho: Array
    delta: Array
    colour: int = 0
    look: str = "solid"
    """solid, dashed (behind the others), dots, or mark."""

    @classmethod
    def of(cls, name: str, frontier: Frontier, colour: int = 0, look: str = "solid") -> Curve:
        return cls(name, frontier.rho, frontier.delta, colour, look)


_LOOKS: dict[str, dict[str, Any]] = {
    "solid": {"linewidth": 2.2, "zorder": 3, "solid_capstyle": "round"},
    "dashed": {"linewidth": 1.8, "linestyle": (0, (4, 2)), "zorder": 2},
    "dots": {"linewidth": 0, "marker": "o", "markersize": 2.6, "zorder": 4},
    "mark": {"linewidth": 0, "marker": "o", "markersize": 8, "markeredgecolor": "white", "zorder": 5},
}


def panels(parts: Mapping[str, Sequence[Curve]], columns: int = 3, top: float = 1.0) -> Figure:
    """One panel per part, each with its legend; all share their axes' limits."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(columns, len(parts))
    rows = -(-len(parts) // columns)
    size = (4.1 * columns + 0.4, 3.9 * rows)
    result = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08), facecolor="white")
    grid = result.subplots(rows, columns, squeeze=False)
    for place, (title, curves) in enumerate(parts.items()):
        axes = grid[place // columns][place % columns]
        for curve in curves:
            colour = PALETTE[curve.colour % len(PALETTE)]
            axes.plot(curve.rho, curve.delta, color=colour, label=curve.name or None, **_LOOKS[curve.look])
        panel(axes, title, "convergence rate $\\rho$")
        if place % columns == 0:
            axes.set_ylabel("suboptimality $\\Delta$", color=INK, fontsize=10.5)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02 * top, 1.02 * top))
        clean(axes, "both")
        axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
    for empty in range(len(parts), rows * columns):
        grid[empty // columns][empty % columns].set_visible(False)
    return result


def numbers(parts: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    """What is drawn, for the study's data."""
    return {
        title: [{"name": c.name, "rho": c.rho, "delta": c.delta} for c in curves] for title, curves in parts.items()
    }

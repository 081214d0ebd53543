"""How all figures look, and the one way to make them: colours that any colour vision tells apart, quiet axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from parley.core.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = [
    "FAINT",
    "INK",
    "PALETTE",
    "Stroke",
    "accuracy_scale",
    "clean",
    "footnote",
    "headline",
    "legend",
    "new_figure",
    "panel",
    "percent_axis",
    "shortened",
    "strokes",
    "y_label",
]

INK, FAINT = "#22313f", "#75828e"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe and Ito's colours without yellow, which is too pale on white."""
_TICKS = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (3, 1, 1, 1)))
_BASELINES = {"pooled": ("#4d4d4d", (0, (6, 2))), "alone": ("#8c8c8c", (0, (1.2, 1.4)))}


def new_figure(width: float, height: float, w_pad: float | None = None, h_pad: float | None = None) -> Figure:
    """An empty figure of so many inches, white, laid out so that nothing overlaps; the pads are in inches too."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from parley.core.figure import Picture

    layout = ConstrainedLayoutEngine(w_pad=w_pad, h_pad=h_pad)
    return Picture(figsize=(width, height), layout=layout, facecolor="white")


def headline(figure: Figure, text: str, size: float = 14) -> None:
    """What the figure says, above its left edge."""
    figure.suptitle(text, x=0.012, ha="left", color=INK, fontsize=size, fontweight="bold")


def footnote(figure: Figure, text: str) -> None:
    """What was measured, small and below everything."""
    figure.supxlabel(text, fontsize=9, color=FAINT)


def y_label(axes: Axes, what: str) -> None:
    """What the vertical axis shows."""
    axes.set_ylabel(what, color=INK, fontsize=10.5)


def legend(axes: Axes, size: float = 10, **where: Any) -> None:
    """A panel's legend, without a frame."""
    axes.legend(frameon=False, fontsize=size, labelcolor=INK, **where)


def shortened(name: str, most: int = 18) -> str:
    """A name that fits beside an axis, every character of it shown as it is."""
    shown = printable(name)
    return (shown if len(shown) <= most else f"{shown[: most - 1]}…").replace("$", "\\$")


@dataclass(frozen=True)
class Stroke:
    """How one run is drawn."""

    colour: str
    dashes: Any = "-"
    width: float = 2.0

    @property
    def line(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": self.dashes, "linewidth": self.width, "solid_capstyle": "round"}

    @property
    def dot(self) -> dict[str, Any]:
        """A mark on the line."""
        edge = {"markersize": 7, "markeredgewidth": 1.6, "markeredgecolor": "white", "zorder": 5}
        return edge | {"marker": "o", "color": self.colour}


def strokes(roles: Sequence[str]) -> list[Stroke]:
    """One per run: colours for federated ones, then new dashes when the colours are used up; greys for baselines."""
    number = count()
    result = []
    for role in roles:
        if role in _BASELINES:
            result.append(Stroke(*_BASELINES[role], width=1.6))
            continue
        index = next(number)
        result.append(Stroke(PALETTE[index % len(PALETTE)], _DASHES[index // len(PALETTE) % len(_DASHES)]))
    return result


def panel(axes: Axes, name: str, across: str) -> None:
    """A panel's name above its left edge, and what its horizontal axis shows."""
    axes.set_title(name, loc="left", color=INK, fontsize=11.5, fontweight="bold", pad=8)
    axes.set_xlabel(across, color=INK, fontsize=10.5)


def clean(axes: Axes, grid: Literal["x", "y", "both"] | None = "y", labels: float = 10) -> None:
    """No frame, a pale grid or none, dark labels of this size."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#c8d0d8")
    if grid is not None:
        axes.grid(axis=grid, color="#e8ecf0", linewidth=0.8)
        axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, length=0, labelsize=labels, labelcolor=INK)


def percent_axis(axis: Axis) -> None:
    """Shares as percent."""
    axis.set_major_formatter(lambda value, _: f"{value:.0%}")


def accuracy_scale(axes: Axes, lowest: float, highest: float) -> None:
    """Percent upwards; where the best are above 90%, stretched towards 100% so that they can be told apart."""
    if highest <= 0.9:
        axes.set_ylim(max(0.0, lowest - 0.03), highest + 0.03)
        percent_axis(axes.yaxis)
        return
    axes.set_yscale("function", functions=(_stretch, _unstretch))
    axes.set_ylim(float(_unstretch(_stretch(max(0.0, lowest)) - 0.04)), min(1.0, highest + 0.4 * (1 - highest) + 0.001))
    bottom, top = axes.get_ylim()
    axes.set_yticks([tick for tick in _TICKS if bottom <= tick <= top])
    percent_axis(axes.yaxis)
    axes.minorticks_off()


def _stretch(accuracy: Any) -> Any:
    """-log of the error; the error counts as one percentage point more than it is, so that 100% has a place."""
    return -np.log(np.maximum(1.01 - np.asarray(accuracy), 1e-6))


def _unstretch(value: Any) -> Any:
    return 1.01 - np.exp(-np.asarray(value))

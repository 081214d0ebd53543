"""The trade-off between convergence and accuracy as a figure: the frontier, and what the choices do round by round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from parley.advise.tradeoff import Tradeoff
from parley.report.style import FAINT, INK, PALETTE, clean, new_figure, panel
from parley.theory.advice import Choice
from parley.theory.frontier import delta_of_spread, exact_frontier
from parley.theory.servers import SERVERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMES = {"none": "no momentum", "nesterov": "Nesterov", "heavy-ball": "heavy ball"}
_BEST, _SGD, _SHOT = PALETTE[1], PALETTE[0], PALETTE[2]
_LEAST = 1e-16
"""Distances below are rounding, and have a place on a logarithmic axis."""


def figure(advice: Tradeoff) -> Figure:
    """Two panels, 11 x 4.8 inches; save with dpi=150."""
    result = new_figure(11, 4.8, 0.12, 0.08)
    left, right = result.subplots(1, 2)
    _frontier(left, advice)
    _over_rounds(right, advice)
    return result


def _frontier(axes: Axes, advice: Tradeoff) -> None:
    for server, dashes in zip(SERVERS, ((0, (1.2, 1.2)), (0, (5, 1.5)), (0, (3, 1, 1, 1))), strict=True):
        look: dict[str, Any] = {"color": "#a9b4be", "linestyle": dashes}
        if server == advice.server:
            look = {"color": INK, "linewidth": 2.4, "zorder": 3}
        axes.plot(*exact_frontier(advice.kappa0, server), label=_NAMES[server], **look)
    best, sgd, shot = advice.guaranteed.best, advice.guaranteed.minibatch_sgd, advice.guaranteed.one_shot
    if advice.kappa0 < 1.01:
        _mark(axes, advice, best, _BEST, "all settings are alike")
    else:
        same = best.server.rho > sgd.server.rho - 1e-3
        name = "best guarantee: mini-batch SGD" if same else "mini-batch SGD"
        _mark(axes, advice, sgd, _BEST if same else _SGD, name)
        _mark(axes, advice, shot, _SHOT, "one-shot")
        if not same:
            _mark(axes, advice, best, _BEST, "best guarantee")
    title = f"Frontier for $\\kappa_0$ = {_number(advice.kappa0)}"
    panel(axes, title, "convergence rate $\\rho$   (\u2190 faster)")
    axes.set_ylabel("suboptimality $\\Delta$   (\u2190 more accurate)", color=INK, fontsize=10.5)
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    clean(axes, "both")
    # Where no curve is: above them, or below those that hug the corner.
    corner: Literal["upper right", "center left"] = "upper right" if advice.kappa0 < 300 else "center left"
    axes.legend(frameon=False, fontsize=10, labelcolor=INK, loc=corner, title="server")


def _number(value: float) -> str:
    """Four digits; from a million on with a power of ten, for a formula."""
    if value < 1e6:
        return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"
    mantissa, exponent = f"{value:.3e}".split("e")
    front = "" if float(mantissa) == 1 else f"{float(mantissa):g} \\cdot "
    return f"${front}10^{{{int(exponent)}}}$"


def _mark(axes: Axes, advice: Tradeoff, choice: Choice, colour: str, name: str) -> None:
    """A choice's point on the frontier of its server, with its name."""
    rho = choice.server.rho
    delta = float(delta_of_spread(np.log(advice.kappa0 / choice.kappa)))
    axes.plot(rho, delta, marker="o", markersize=9, markeredgecolor="white", color=colour, zorder=5)
    side = -1 if rho > 0.3 else 1
    above = -3.0 if side < 0 and delta >= 0.1 else 7.0
    if delta > 0.9:
        above = -18.0
    axes.annotate(
        name,
        (rho, delta),
        xytext=(9 * side, above),
        textcoords="offset points",
        color=colour,
        fontsize=10,
        fontweight="bold",
        zorder=6,
        ha="left" if side > 0 else "right",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0},
    )


def _over_rounds(axes: Axes, advice: Tradeoff) -> None:
    from matplotlib.ticker import LogLocator

    rounds = np.unique(np.geomspace(1, 2 * advice.rounds, 200).astype(int)).astype(np.float64)
    exact, bound = advice.actual, advice.guaranteed
    for name, colour, field in (
        ("best", _BEST, "best"),
        ("mini-batch SGD", _SGD, "minibatch_sgd"),
        ("one-shot averaging", _SHOT, "one_shot"),
    ):
        values = (
            advice.bounds(getattr(bound, field), rounds)
            if exact is None
            else advice.distances(getattr(exact, field), rounds)
        )
        # Thicker and behind: seen even where another line lies on it.
        look: dict[str, Any] = {"linewidth": 4.5, "zorder": 2} if name == "best" else {"linewidth": 1.8, "zorder": 3}
        axes.plot(rounds, np.maximum(values, _LEAST), color=colour, label=name, solid_capstyle="round", **look)
    axes.axvline(advice.rounds, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(
        f"T = {advice.rounds:,}",
        (advice.rounds, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(5, -12),
        textcoords="offset points",
        color=FAINT,
        fontsize=10,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0},
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if advice.rounds < 1000 else (1,)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    what = "Bound on the distance to the optimum" if exact is None else "Distance of these clients to the optimum"
    panel(axes, what, "round")
    clean(axes, "both")
    axes.minorticks_off()
    low, high = axes.get_ylim()
    if high < 100 * low:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(frameon=False, fontsize=10, labelcolor=INK)

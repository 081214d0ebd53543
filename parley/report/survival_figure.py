"""Survival curves in steps with their intervals, and below them how many are still at risk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parley.analyse.curves import Curve, SurvivalCurves
from parley.report.style import FAINT, INK, PALETTE, clean, footnote, headline, legend, new_figure, shortened, y_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 10
"""Most times at which those at risk are counted."""


def survival_figure(survival: SurvivalCurves) -> Figure:
    """Curves above, rows at risk below; 8 inches wide."""
    many = len(survival.curves)
    result = new_figure(8, 4.8 + 0.28 * many, w_pad=0.08, h_pad=0.06)
    upper, lower = result.subplots(2, 1, sharex=True, height_ratios=(4.2, 0.5 + 0.28 * many))
    colours = {curve.group: PALETTE[n % len(PALETTE)] for n, curve in enumerate(survival.curves)}
    for curve in survival.curves:
        _draw(upper, curve, colours[curve.group], _label(survival, curve))
    upper.set_ylim(0, 1.02)
    end = max((time for curve in survival.curves for time in _path(curve)[0]), default=1.0)
    upper.set_xlim(0, end or 1.0)
    y_label(upper, f"survival, {100 * survival.level:.4g}% intervals")
    clean(upper, "y")
    legend(upper, loc="lower left")
    _at_risk(lower, survival, colours, end)
    test = f"; log-rank p = {survival.p:.3g}" if survival.p is not None else ""
    headline(result, f"Survival: {shortened(survival.title, 40)}{test}", 13)
    footnote(result, "; ".join(_about(survival)))
    return result


def _about(analysis: SurvivalCurves) -> list[str]:
    events = sum(curve.events for curve in analysis.curves)
    sentences = [f"{analysis.rows:,} rows with {events:,} events of {analysis.contributed} clients"]
    if analysis.times == "grid":
        sentences.append(f"steps where cells end, unrounded times at most {analysis.grid_error:.2g} lower")
    return sentences


def _label(result: SurvivalCurves, curve: Curve) -> str:
    name = f"{shortened(result.by)} = {curve.group}" if result.by else "all"
    return f"{name} ({curve.rows:,} rows, {curve.events:,} events)"


def _path(curve: Curve) -> tuple[list[float], list[float], list[float], list[float]]:
    """Times, survival and the ends of intervals, from 0 until nobody is at risk."""
    steps = [step for step in curve.steps if step.time is not None and step.at_risk]
    times = [0.0, *(step.time for step in steps if step.time is not None)]
    columns = ([1.0, *(getattr(step, name) for step in steps)] for name in ("survival", "low", "high"))
    return times, *columns  # type: ignore[return-value]


def _draw(axes: Axes, curve: Curve, colour: str, label: str) -> None:
    times, survival, low, high = _path(curve)
    axes.fill_between(times, low, high, step="post", color=colour, alpha=0.15, linewidth=0)
    axes.step(times, survival, where="post", color=colour, linewidth=2, label=label)


def _at_risk(axes: Axes, result: SurvivalCurves, colours: dict[str, str], end: float) -> None:
    ticks = [float(tick) for tick in axes.get_xticks() if 0 <= tick <= end]
    ticks = ticks[:: -(-len(ticks) // _COLUMNS)]
    for row, curve in enumerate(result.curves):
        for tick in ticks:
            axes.text(
                tick,
                -row,
                f"{_still(curve, tick, result.times == 'raw'):,}",
                ha="center",
                va="center",
                color=colours[curve.group],
                fontsize=9.5,
                clip_on=False,
            )
    axes.set_ylim(-len(result.curves) + 0.4, 0.6)
    axes.set_yticks([-row for row in range(len(result.curves))], [shortened(curve.group) for curve in result.curves])
    axes.tick_params(axis="y", length=0, labelcolor=INK, pad=18)
    when = "at the next event" if result.times == "raw" else "when the cell began"
    axes.set_title(f"at risk {when}", loc="left", color=FAINT, fontsize=9.5)
    axes.set_xlabel("time", color=INK, fontsize=10.5)
    for side in axes.spines.values():
        side.set_visible(False)


def _still(curve: Curve, time: float, raw: bool) -> int:
    """Rows at risk when the cell of a time began, or at the next event."""
    if time <= 0:
        return curve.rows
    ends = np.array([np.inf if step.time is None else step.time for step in curve.steps])
    index = int(np.searchsorted(ends, time, side="left" if raw else "right"))
    return curve.steps[index].at_risk if index < len(curve.steps) else 0

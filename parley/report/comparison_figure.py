"""A comparison as a figure: accuracy over rounds and over megabytes, and how it is spread over the clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parley.report.compare import Comparison, Line
from parley.report.groups import Curve
from parley.report.style import (
    FAINT,
    INK,
    Stroke,
    accuracy_scale,
    clean,
    new_figure,
    panel,
    percent_axis,
    shortened,
    strokes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BINS = 60
"""Clients whose accuracies are nearer than 1 / 60 share a bubble."""


def figure(comparison: Comparison) -> Figure:
    """Two panels, and a third where clients were evaluated one by one; save with dpi=150 for 1800 pixels' width."""
    lines = comparison.lines
    drawn = list(zip(lines, strokes([line.group.role for line in lines]), strict=True))
    spread = [(line, stroke) for line, stroke in drawn if line.quantiles and line.metric.endswith("accuracy")]
    result = new_figure(12, 5.2, 0.1, 0.06)
    panels = result.subplots(1, 3 if spread else 2, width_ratios=(1, 1, 0.95) if spread else (1, 1))
    over_rounds, over_megabytes = panels[0], panels[1]
    over_megabytes.sharey(over_rounds)
    _over_rounds(over_rounds, comparison, drawn)
    _over_megabytes(over_megabytes, comparison, drawn)
    if spread:
        _clients(panels[2], spread)
    _legend(result, comparison, over_rounds)
    return result


def _legend(result: Figure, comparison: Comparison, axes: Axes) -> None:
    """The headline, what is drawn how, and where the target is."""
    from matplotlib.lines import Line2D

    handles, labels = axes.get_legend_handles_labels()
    if not np.isnan(comparison.target):
        handles.append(Line2D([], [], color=FAINT, linewidth=0.9, marker="o", markersize=6))
        labels.append(f"target {comparison.show(comparison.target)}")
    words = comparison.metric_words[0].upper() + comparison.metric_words[1:]
    stretched = "  (vertical scale stretched towards 100%)" if axes.get_yscale() == "function" else ""
    result.legend(
        handles,
        labels,
        title=words + stretched,
        alignment="left",
        loc="outside upper left",
        title_fontproperties={"weight": "bold", "size": 14},
        ncols=min(len(labels), 7),
        frameon=False,
        fontsize=10.5,
        labelcolor=INK,
        handlelength=2.2,
        columnspacing=1.6,
        borderaxespad=0.3,
    ).get_title().set_color(INK)


def _over_rounds(axes: Axes, comparison: Comparison, drawn: list[tuple[Line, Stroke]]) -> None:
    for line, stroke in drawn:
        curve = line.group.curve(comparison.metric)
        axes.plot(curve.rounds, curve.mean, label=shortened(line.label, 40), **stroke.line)
        _band(axes, curve.rounds, curve, line, stroke)
        for x, y in _arrivals(comparison, line, "round"):
            axes.plot([x], [y], **stroke.dot)
    axes.set_xlim(left=0)
    panel(axes, "over rounds", "round")
    _target(axes, comparison)
    _value_axis(axes, comparison, drawn)


def _over_megabytes(axes: Axes, comparison: Comparison, drawn: list[tuple[Line, Stroke]]) -> None:
    totals = [line.megabytes for line, _ in drawn if line.group.role == "federated" and line.megabytes > 0]
    if totals and max(totals) > 8 * min(totals):
        axes.set_xscale("log")
    for line, stroke in drawn:
        if line.group.role != "federated":
            axes.axhline(line.last.value, **stroke.line)
            continue
        curve = line.group.curve(comparison.metric)
        sent = curve.megabytes > 0 if axes.get_xscale() == "log" else curve.megabytes >= 0
        axes.plot(curve.megabytes[sent], curve.mean[sent], **stroke.line)
        _band(axes, curve.megabytes, curve, line, stroke, sent)
        for x, y in _arrivals(comparison, line, "megabytes"):
            if x > 0:
                axes.plot([x], [y], **stroke.dot)
    if axes.get_xscale() == "linear":
        axes.set_xlim(left=0)
    else:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    panel(axes, "over traffic", "MB, sent and received by all clients")
    _target(axes, comparison)
    clean(axes)
    axes.tick_params(labelleft=False)


def _band(
    axes: Axes, x: np.ndarray, curve: Curve, line: Line, stroke: Stroke, at: np.ndarray | slice = slice(None)
) -> None:
    """From the lowest to the highest seed."""
    if len(line.group.runs) > 1:
        axes.fill_between(x[at], curve.low[at], curve.high[at], color=stroke.colour, alpha=0.15, linewidth=0)


def _arrivals(comparison: Comparison, line: Line, what: str) -> list[tuple[float, float]]:
    """Where runs met the target: of one run, the point on its curve; of several, each on the target's line."""
    if len(line.group.runs) > 1:
        return [(float(getattr(success, what)), comparison.target) for success in line.successes]
    rounds, values = line.group.runs[0].series[comparison.metric]
    return [
        (float(getattr(success, what)), float(values[int(np.flatnonzero(rounds == success.round)[0])]))
        for success in line.successes
    ]


def _target(axes: Axes, comparison: Comparison) -> None:
    if not np.isnan(comparison.target):
        axes.axhline(comparison.target, color=FAINT, linewidth=0.9, zorder=1)


def _value_axis(axes: Axes, comparison: Comparison, drawn: list[tuple[Line, Stroke]]) -> None:
    clean(axes)
    if not comparison.lower_is_better:
        every = np.concatenate([run.series[comparison.metric][1] for line, _ in drawn for run in line.group.runs])
        known = every[np.isfinite(every)] if np.isfinite(every).any() else np.array([0.0, 1.0])
        accuracy_scale(axes, float(known.min()), float(known.max()))


def _clients(axes: Axes, spread: list[tuple[Line, Stroke]]) -> None:
    """A strip per run: a bar from 10% to 90% of the clients with the median; below it, bubbles by number of clients."""
    for row, (line, stroke) in enumerate(reversed(spread)):
        values, counts = _bubbles(line)
        sizes = 18 + 240 * (counts - 1) / max(counts.sum() - 1, 1)
        axes.scatter(values, np.full(len(values), row - 0.3), s=sizes, color=stroke.colour, alpha=0.6, linewidths=0)
        assert line.quantiles is not None
        low, median, high = line.quantiles
        axes.plot([low, high], [row, row], color=stroke.colour, linewidth=5, solid_capstyle="round", alpha=0.35)
        axes.plot([median], [row], marker="|", markersize=13, markeredgewidth=2.6, color=stroke.colour)
        axes.annotate(
            f"{median:.0%}",
            (median, row),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=9.5,
            color=INK,
        )
    names = [line.label for line, _ in reversed(spread)]
    axes.set_yticks(range(len(spread)), [shortened(name) for name in names])
    axes.set_ylim(-0.7, len(spread) - 0.4)
    lowest = min(float(_known(line).min()) for line, _ in spread)
    axes.set_xlim(max(-0.02, lowest - 0.05), 1.03)
    panel(axes, "client by client", "accuracy on own held-out samples")
    clean(axes, grid="x")
    percent_axis(axes.xaxis)


def _bubbles(line: Line) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies that differ visibly and how many clients have each."""
    cells, counts = np.unique(np.round(_known(line) * _BINS).astype(int), return_counts=True)
    return cells / _BINS, counts


def _known(line: Line) -> np.ndarray:
    """The accuracies of all runs' clients."""
    return np.array([client.value for client in line.group.clients])

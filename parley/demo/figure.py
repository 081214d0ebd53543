"""The demo's figure: what each method reaches for its traffic, what the advice changed, and who gains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.advise.gain.result import Gains
from parley.report import Comparison, Line
from parley.report.gains_figure import draw_gains
from parley.report.style import FAINT, INK, PALETTE, accuracy_scale, clean, legend, new_figure, panel, percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES = {
    "default": "FedAvg, default settings",
    "advised": "FedAvg, advised settings",
    "fedavg": "FedAvg, tuned by trial",
}
COLOURS = {"default": PALETTE[5], "advised": PALETTE[1], "fedavg": PALETTE[2]}


def demo_figure(comparison: Comparison, gains: Gains) -> Figure:
    """Four panels, 16 inches wide; the first two share their rows."""
    result = new_figure(16, 6.2, 0.1, 0.08)
    reached, sent, advice, who = result.subplots(1, 4, width_ratios=(1, 0.75, 1.1, 1.2))
    lines = sorted(comparison.lines, key=lambda line: line.last.value)
    _reached(reached, lines)
    _sent(sent, lines)
    sent.set_yticks([])
    _advice(advice, comparison)
    draw_gains(who, gains, thin=True)
    return result


def demo_panels(comparison: Comparison, gains: Gains) -> list[Figure]:
    """The same panels, each by itself and small enough to be read on a phone."""
    lines = sorted(comparison.lines, key=lambda line: line.last.value)
    panels = [new_figure(5.6, 4.6, 0.1, 0.08) for _ in range(4)]
    reached, sent, advice, who = (each.subplots() for each in panels)
    _reached(reached, lines)
    _sent(sent, lines)
    sent.set_title("What each method sends", loc="left", color=INK, fontsize=12, fontweight="bold")
    _advice(advice, comparison)
    draw_gains(who, gains, thin=True)
    return panels


def _reached(axes: Axes, lines: list[Line]) -> None:
    """The last accuracy of every method, best on top."""
    for row, line in enumerate(lines):
        colour = FAINT if line.group.role != "federated" else COLOURS.get(line.label, PALETTE[0])
        axes.plot([0, line.last.value], [row, row], color=colour, linewidth=1.2, alpha=0.4)
        axes.plot([line.last.value], [row], "o", color=colour, markersize=8)
        axes.annotate(
            f"{line.last.value:.1%}",
            (line.last.value, row),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=INK,
            fontsize=9.5,
        )
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    axes.set_xlim(0, 1.28)
    axes.set_xticks([0, 0.5, 1])
    percent_axis(axes.xaxis)
    panel(axes, "What each method reaches", "accuracy, all digits")
    clean(axes, "x")


def _sent(axes: Axes, lines: list[Line]) -> None:
    """Megabytes of the whole run, on a logarithmic scale; nothing where no model is sent."""
    for row, line in enumerate(lines):
        if line.group.role == "federated":
            axes.barh(row, line.megabytes, color="#c3ccd5", height=0.6)
            words = f"{line.megabytes:,.0f}" if line.megabytes >= 100 else f"{line.megabytes:.1f}"
            axes.annotate(
                words,
                (line.megabytes, row),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                color=INK,
                fontsize=9.5,
            )
    axes.set_xscale("log")
    most = max(line.megabytes for line in lines)
    axes.set_xlim(min(1.0, most / 10), most * 6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_ylim(-0.6, len(lines) - 0.4)
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    panel(axes, "and sends", "MB, both ways, all clients")
    clean(axes, "x")
    axes.minorticks_off()


def _advice(axes: Axes, comparison: Comparison) -> None:
    """Default, advised and tuned settings over rounds."""
    chosen = [line for line in comparison.lines if line.label in CURVES]
    values = [0.0]
    for line in chosen:
        curve = line.group.curve(comparison.metric)
        axes.plot(curve.rounds, curve.mean, color=COLOURS[line.label], linewidth=2.2, label=CURVES[line.label])
        values += curve.mean.tolist()
    accuracy_scale(axes, min(values), max(values))
    axes.set_xlim(left=0)
    panel(axes, "FedAvg's step size and local steps", "round")
    clean(axes)
    legend(axes, loc="lower right")
